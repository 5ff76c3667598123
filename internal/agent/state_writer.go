package agent

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// stateWriter writes what is believed to the state file, apart from everything else: the disk may be the very thing
// that hangs. Only the newest state of each check waits to be written.
type stateWriter struct {
	store *store.Store
	log   *slog.Logger
	ready chan struct{} // one pending signal is enough: the write takes all that waits

	mu      sync.Mutex // guards what follows
	waiting map[string]*finding.CheckState
	notes   map[string][]byte        // what checks want to remember
	saved   map[string]time.Duration // uptime of the last save, by check
}

// saveEvery is how old the saved state of a check may grow when nothing but its last conclusive look has changed.
const saveEvery = 5 * time.Minute

func newSaver(store *store.Store, log *slog.Logger) *stateWriter {
	return &stateWriter{store: store, log: log, ready: make(chan struct{}, 1),
		waiting: map[string]*finding.CheckState{}, notes: map[string][]byte{}, saved: map[string]time.Duration{}}
}

// enqueue takes the new state of a check and writes it soon when it differs from the old one in what matters.
func (s *stateWriter) enqueue(check string, old, now *finding.CheckState, at finding.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sameShape(old, now) && at.SinceBoot-s.saved[check] < saveEvery {
		return
	}
	s.waiting[check], s.saved[check] = now, at.SinceBoot
	s.wake()
}

func (s *stateWriter) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// enqueueKey takes what a check wants to remember and writes it soon.
func (s *stateWriter) enqueueKey(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[key] = value
	s.wake()
}

// noted returns what waits to be written.
func (s *stateWriter) noted(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.notes[key]
	return value, ok
}

// sameShape reports whether two states differ only in counters and times that a restart may lose.
func sameShape(a, b *finding.CheckState) bool {
	if a == nil || b == nil || a.Status != b.Status || len(a.Subjects) != len(b.Subjects) ||
		(a.Err == "") != (b.Err == "") {
		return false
	}
	for key, x := range a.Subjects {
		y, ok := b.Subjects[key]
		if !ok || x.ID != y.ID || x.Reason != y.Reason || x.Severity != y.Severity ||
			(x.Absent == 0) != (y.Absent == 0) {
			return false
		}
	}
	return true
}

// Run writes until ctx ends, and once more after.
func (s *stateWriter) Run(ctx context.Context) error {
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

func (s *stateWriter) write() {
	s.mu.Lock()
	waiting, notes := s.waiting, s.notes
	s.waiting, s.notes = map[string]*finding.CheckState{}, map[string][]byte{}
	s.mu.Unlock()
	if len(waiting) > 0 {
		if err := s.store.SaveChecks(waiting); err != nil {
			s.log.Error("state not saved", "err", err)
		}
	}
	if len(notes) > 0 {
		_ = s.store.Bucket(memoryBucket).PutAll(notes) // trouble with the disk is told by the check agent-state
	}
}

const memoryBucket = "memory"

// memory is what checks remember from one run to the next. They never wait for the disk.
type memory struct {
	bucket store.Bucket
	saver  *stateWriter
}

// Load returns what was saved under key.
func (m memory) Load(key string) ([]byte, bool) {
	if value, ok := m.saver.noted(key); ok {
		return value, true
	}
	return m.bucket.Get(key)
}

// Save keeps a value; the caller must not change it any more.
func (m memory) Save(key string, value []byte) { m.saver.enqueueKey(key, value) }

// flush makes everything that is believed wait to be written: nothing that is counting is lost by an orderly stop.
func (s *stateWriter) flush(state finding.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.waiting, state)
}
