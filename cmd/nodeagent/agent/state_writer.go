package agent

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// stateWriter writes state to the state file in its own goroutine, because the disk may hang. Only the newest state of
// each check waits to be written.
type stateWriter struct {
	store *store.Store
	log   *slog.Logger
	ready chan struct{} // one pending signal is enough: a write takes everything that waits

	mu      sync.Mutex // guards the fields below
	waiting map[string]*finding.CheckState
	values  map[string][]byte        // of checks, by key
	saved   map[string]time.Duration // uptime of the last save, by check
	renewed time.Duration            // uptime of the last write of otherwise unchanged states
}

// saveEvery is how old the saved state of a check may become when only its last conclusive run has changed.
const saveEvery = 5 * time.Minute

// renewEvery is how often such states are written, all checks together: each write waits twice for the disk.
const renewEvery = time.Minute

func newSaver(store *store.Store, log *slog.Logger) *stateWriter {
	return &stateWriter{store: store, log: log, ready: make(chan struct{}, 1),
		waiting: map[string]*finding.CheckState{}, values: map[string][]byte{}, saved: map[string]time.Duration{}}
}

// enqueue takes the new state of a check, to be written soon if it differs from the old one in a way that matters.
func (s *stateWriter) enqueue(check string, old, now *finding.CheckState, at finding.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := sameShape(old, now)
	if same && at.SinceBoot-s.saved[check] < saveEvery {
		return
	}
	s.waiting[check], s.saved[check] = now, at.SinceBoot
	if same && at.SinceBoot-s.renewed < renewEvery {
		return // written with the next one
	}
	if same {
		s.renewed = at.SinceBoot
	}
	report.Wake(s.ready)
}

// enqueueKey takes a value of a check, to be written soon.
func (s *stateWriter) enqueueKey(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	report.Wake(s.ready)
}

// pending returns a value that waits to be written.
func (s *stateWriter) pending(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.values[key]
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

// Run writes until ctx ends, and once more afterwards.
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
	waiting, values := s.waiting, s.values
	s.waiting, s.values = map[string]*finding.CheckState{}, map[string][]byte{}
	s.mu.Unlock()
	if len(waiting) > 0 {
		if err := s.store.SaveChecks(waiting); err != nil {
			s.log.Error("save state failed", "err", err)
		}
	}
	if len(values) > 0 {
		_ = s.store.Bucket(memoryBucket).PutAll(values) // the check agent-state reports disk trouble
	}
}

const memoryBucket = "memory"

// memory stores values of checks from one run to the next. Its methods never wait for the disk.
type memory struct {
	bucket store.Bucket
	saver  *stateWriter
}

// Load returns what was saved under key.
func (m memory) Load(key string) ([]byte, bool) {
	if value, ok := m.saver.pending(key); ok {
		return value, true
	}
	return m.bucket.Get(key)
}

// Save keeps a value; the caller must not change it afterwards.
func (m memory) Save(key string, value []byte) { m.saver.enqueueKey(key, value) }

// flush enqueues all state, so that an orderly stop loses no streak of observations.
func (s *stateWriter) flush(state finding.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.waiting, state)
}
