package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// startCheck limits the check of the newest file at the start. Check reads all files.
const startCheck = 500 * time.Millisecond

// checkedAtOnce is how many events of a file the check holds in memory.
const checkedAtOnce = 500

// check finds events missing between files and at the end, and whether the newest file may be written to.
func (s *Store) check(ctx context.Context, marked uint64) error {
	s.newest = marked
	for i, p := range s.parts {
		if i > 0 {
			before := s.parts[i-1]
			if !before.damaged.Load() && p.first > before.last+1 {
				s.addGap(journal.Gap{From: before.last + 1, To: p.first - 1, Reason: "missing before " + p.path})
			}
		}
		s.newest = max(s.newest, p.last, p.first-1)
	}
	if len(s.parts) == 0 {
		return nil
	}
	p := s.parts[len(s.parts)-1]
	if marked > p.last && !p.damaged.Load() {
		s.addGap(journal.Gap{From: p.last + 1, To: marked, Reason: "acknowledged, and missing at the end of " + p.path})
	}
	limited, cancel := context.WithTimeout(ctx, startCheck)
	defer cancel()
	var answer string
	err := p.db.QueryRowContext(limited, "PRAGMA quick_check(1)").Scan(&answer)
	if err == nil && answer != "ok" {
		s.setDamaged(p, errors.New(answer))
	} else if err != nil && isDamage(err) {
		s.setDamaged(p, err)
	} else if err != nil && limited.Err() == nil {
		return err
	}
	if p.damaged.Load() { // its end may be unknown: at least its name is never given to another file
		s.newest = max(s.newest, p.first)
	}
	return ctx.Err()
}

// setDamaged records that a file is damaged, and that its index may lack events.
func (s *Store) setDamaged(p *partition, err error) {
	p.noIndex.Store(true)
	s.setUnwritable(p, err)
}

// setUnwritable records that a file is damaged where it was read.
func (s *Store) setUnwritable(p *partition, err error) {
	if !p.damaged.Swap(true) {
		s.Log.Error("stop writing to a damaged file of the journal", "file", p.path, "err", err)
	}
}

// Check reads all files and records unreadable offsets as gaps. It changes no files. After each step, which reads the
// events of one page, it calls rest with the step's duration. It holds no locks then: files may be sealed and trimmed.
func (s *Store) Check(ctx context.Context, rest func(worked time.Duration)) ([]journal.Gap, error) {
	var errs []error
	for p, q := range s.spans(journal.Query{Limit: checkedAtOnce}, s.Bounds().Newest) {
		found := 0
		err := s.walk(ctx, p, q, func(records []journal.Record, worked time.Duration) error {
			found += len(records)
			rest(worked)
			return nil
		})
		if err == nil {
			err = s.checkIndex(ctx, p, found, int(q.last-q.next+1))
		}
		if _, gone := errors.AsType[*journal.TrimmedError](err); err != nil && !gone {
			errs = append(errs, fmt.Errorf("check %s: %w", p.path, err))
		}
	}
	return s.Health().Gaps, errors.Join(errs...)
}

// WithoutRest is for a check without pauses.
func WithoutRest(time.Duration) {}

// walk reads a whole span, a few records at a time.
func (s *Store) walk(ctx context.Context, p *partition, q span,
	use func(records []journal.Record, worked time.Duration) error) error {
	for !q.done() {
		begun := time.Now()
		var page journal.Page
		full, err := s.readPartition(ctx, p, &q, &page)
		if err != nil {
			return err
		}
		if err := use(page.Records, time.Since(begun)); err != nil || !full {
			return err
		}
	}
	return nil
}

// checkIndex compares the index of nodes with the number of readable events, and of those that were appended: an
// incomplete index is not used.
func (s *Store) checkIndex(ctx context.Context, p *partition, events, appended int) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return nil
	}
	var indexed int
	err := p.db.QueryRowContext(ctx, "SELECT count(*) FROM events INDEXED BY events_node WHERE node >= ''").Scan(&indexed)
	if err != nil && !isDamage(err) {
		return err
	}
	if err == nil && indexed < appended {
		p.noIndex.Store(true) // it may lack readable events, as many as are unreadable
	}
	if err == nil && indexed < events {
		err = fmt.Errorf("the index of nodes has %d of %d events", indexed, events)
	}
	if err != nil {
		s.setDamaged(p, err)
	}
	return nil
}
