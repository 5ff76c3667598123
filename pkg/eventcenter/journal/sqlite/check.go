package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// startCheck is how long the check of the newest file may take at the start. Check goes through all of them.
const startCheck = 500 * time.Millisecond

// checkedAtOnce is how many events of a file the check has in memory.
const checkedAtOnce = 500

// check finds at the start what is damaged or missing: between the files, at the end, and in the newest file.
func (s *Store) check(ctx context.Context, marked uint64) error {
	expected := uint64(0)
	for i, p := range s.parts {
		if i > 0 && p.first > expected {
			s.addGap(journal.Gap{From: expected, To: p.first - 1, Reason: "missing before " + p.path})
		}
		expected = p.last + 1
		if p.damaged != nil && i+1 < len(s.parts) {
			end := s.parts[i+1].first - 1
			s.addGap(journal.Gap{From: p.first, To: end, Reason: fmt.Sprintf("damaged: %s: %v", p.path, p.damaged)})
			expected = end + 1
		}
	}
	if len(s.parts) == 0 {
		s.newest = marked
		return nil
	}
	p := s.parts[len(s.parts)-1]
	s.newest = max(p.last, p.first-1, marked)
	if marked > p.last {
		s.addGap(journal.Gap{From: p.last + 1, To: marked, Reason: "acknowledged, and missing at the end of " + p.path})
	}
	limited, cancel := context.WithTimeout(ctx, startCheck)
	defer cancel()
	err := s.checkPartition(limited, p, s.newest, WithoutRest)
	if p.damaged != nil { // how far it went is not known: its name at least is never given to another file
		s.newest = max(s.newest, p.first)
	}
	if err != nil && limited.Err() == nil && p.damaged == nil {
		return err
	}
	return ctx.Err()
}

// Check reads all files and notes what is damaged, as gaps. It changes nothing. After each step, which reads the events of
// one page or the structure of one file, it calls rest with the time that the step took. Nothing is locked meanwhile:
// files may be sealed and trimmed.
func (s *Store) Check(ctx context.Context, rest func(worked time.Duration)) ([]journal.Gap, error) {
	parts := s.partitions()
	var errs []error
	for i, p := range parts {
		last := s.Bounds().Newest
		if i+1 < len(parts) {
			last = parts[i+1].first - 1
		}
		errs = append(errs, s.checkPartition(ctx, p, last, rest))
		p.forget(ctx)
	}
	return s.Health().Gaps, errors.Join(errs...)
}

// WithoutRest is for a check that somebody waits for.
func WithoutRest(time.Duration) {}

// forget gives back the memory in which a reader has pages of the file: after the check of all files it is of each of them.
func (p *partition) forget(ctx context.Context) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db != nil {
		_, _ = p.db.ExecContext(ctx, "PRAGMA shrink_memory") // of a file that cannot be read there is none
	}
}

// checkPartition verifies the structure of a file, and the checksum of each row up to last.
func (s *Store) checkPartition(ctx context.Context, p *partition, last uint64, rest func(time.Duration)) error {
	began := time.Now()
	if err := s.quickCheck(ctx, p); err != nil {
		return err
	}
	for after := p.first - 1; after < last; {
		rest(time.Since(began))
		began = time.Now()
		var page journal.Page
		to := min(last, after+checkedAtOnce)
		full, err := s.readPartition(ctx, p, span{journal.Query{Limit: checkedAtOnce + 1}, after, to}, &page)
		if err != nil {
			if _, gone := errors.AsType[*journal.TrimmedError](err); gone {
				return nil
			}
			return fmt.Errorf("check %s: %w", p.path, err)
		}
		if after = to; full { // of bytes: what follows is on the next
			after = page.Records[len(page.Records)-1].Offset
		}
	}
	rest(time.Since(began))
	return nil
}

func (s *Store) quickCheck(ctx context.Context, p *partition) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return nil
	}
	var answer string
	err := p.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&answer)
	if err != nil && !isDamage(err) {
		return fmt.Errorf("check %s: %w", p.path, err)
	}
	if err == nil && answer != "ok" {
		err = errors.New(answer)
	}
	if err != nil {
		s.mu.Lock()
		p.damaged = err
		s.mu.Unlock()
		s.Log.Error("a file of the journal is damaged; nothing more is written to it", "file", p.path, "err", err)
	}
	return nil
}
