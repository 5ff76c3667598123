package sqlite

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// trimEvery is how often a file is dropped because of its age while the disk has room: a wrong clock takes one after the
// other, so that people have time to notice.
const trimEvery = time.Hour

// Expired returns the offset up to which the limits want the journal trimmed, 0 if they want no trimming.
func (s *Store) Expired(l journal.Limits) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	total, end, now := int64(0), uint64(0), s.Now()
	newest, next := make([]time.Time, len(s.parts)), now // a file without a time, or ahead, counts as the next
	for i, p := range slices.Backward(s.parts) {
		total += p.size()
		if newest[i] = p.newest; p.last < p.first || p.newest.After(now) {
			newest[i] = next
		}
		next = newest[i]
	}
	full := !s.fullFrom.IsZero()
	byAge := l.Age > 0 && (full || now.Sub(s.trimmed).Abs() >= trimEvery)
	for i, p := range s.parts {
		old := byAge && now.Sub(newest[i]) > l.Age
		large := l.Bytes > 0 && total > l.Bytes
		if i == len(s.parts)-1 || !old && !large {
			break
		}
		end, total, byAge = s.parts[i+1].first-1, total-p.size(), byAge && (full || !old)
	}
	return end
}

// lastReceived returns when the newest event was received. It needs mu.
func (s *Store) lastReceived() time.Time {
	for _, p := range slices.Backward(s.parts) {
		if p.last >= p.first {
			return p.newest
		}
	}
	return time.Time{}
}

// Whole returns the end of the newest file whose offsets are all at most upTo, 0 if there is none.
func (s *Store) Whole(upTo uint64) (end uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range len(s.parts) - 1 {
		if last := s.parts[i+1].first - 1; last <= upTo {
			end = last
		}
	}
	return end
}

// Trim drops whole files whose offsets are all at most upTo, never the newest.
func (s *Store) Trim(_ context.Context, upTo uint64) error {
	s.mu.Lock()
	var dropped []*partition
	for len(s.parts) > 1 && s.parts[1].first-1 <= upTo {
		dropped, s.parts = append(dropped, s.parts[0]), s.parts[1:]
	}
	s.gaps = within(s.gaps, s.oldest()-1, math.MaxUint64)
	if len(dropped) > 0 {
		s.trimmed = s.Now()
	}
	s.mu.Unlock()
	var errs []error
	for _, p := range dropped {
		errs = append(errs, p.drop())
	}
	return errors.Join(append(errs, syncDir(s.Dir))...)
}

// Seal removes the write-ahead logs of past days, so that their files can be read on a full disk.
func (s *Store) Seal(ctx context.Context) error {
	parts := s.partitions()
	var errs []error
	for i, p := range parts {
		if i < len(parts)-1 && !p.damaged.Load() {
			errs = append(errs, p.seal(ctx))
		}
	}
	return errors.Join(errs...)
}

// IsPartition reports whether a file of this name belongs to a journal.
func IsPartition(name string) bool {
	_, ok := partitionFirst(name)
	return ok
}

// Renew gives the journal in a directory a new UUID, and returns it.
func Renew(dir string) (string, error) {
	id := string(uuid.NewUUID())
	return id, writeFile(filepath.Join(dir, "uuid"), id+"\n")
}
