package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// saver writes what is believed to the state file, apart from everything else: the disk may be the very thing that hangs.
// Only the newest state of each check waits to be written.
type saver struct {
	store *finding.Store
	log   *slog.Logger
	ready chan struct{} // one pending signal is enough: the write takes all that waits

	mu      sync.Mutex // guards what follows
	waiting map[string]*finding.CheckState
	saved   map[string]time.Duration // uptime of the last save, by check
}

// saveEvery is how old the saved state of a check may grow when nothing but its last conclusive look has changed.
const saveEvery = 5 * time.Minute

func newSaver(store *finding.Store, log *slog.Logger) *saver {
	return &saver{store: store, log: log, ready: make(chan struct{}, 1), waiting: map[string]*finding.CheckState{}, saved: map[string]time.Duration{}}
}

// offer takes the new state of a check and writes it soon when it differs from the old one in what matters.
func (s *saver) offer(check string, old, now *finding.CheckState, at finding.Stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sameShape(old, now) && at.Up-s.saved[check] < saveEvery {
		return
	}
	s.waiting[check], s.saved[check] = now, at.Up
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// sameShape reports whether two states differ only in counters and times that a restart may lose.
func sameShape(a, b *finding.CheckState) bool {
	if a == nil || b == nil || a.Status != b.Status || len(a.Subjects) != len(b.Subjects) || (a.Err == "") != (b.Err == "") {
		return false
	}
	for key, x := range a.Subjects {
		y, ok := b.Subjects[key]
		if !ok || x.ID != y.ID || x.Reason != y.Reason || x.Severity != y.Severity || (x.Absent == 0) != (y.Absent == 0) {
			return false
		}
	}
	return true
}

// Run writes until ctx ends, and once more after.
func (s *saver) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			s.write()
			return nil
		case <-s.ready:
			s.write()
		}
	}
}

func (s *saver) write() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = map[string]*finding.CheckState{}
	s.mu.Unlock()
	for _, check := range slices.Sorted(maps.Keys(waiting)) {
		if err := s.store.SaveCheck(check, waiting[check]); err != nil {
			s.log.Error("state not saved", "check", check, "err", err)
		}
	}
}

// flush makes everything that is believed wait to be written: nothing that is counting is lost by an orderly stop.
func (s *saver) flush(state finding.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.waiting, state)
}
