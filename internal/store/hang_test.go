package store

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTroubleNeverWaits: while a write hangs on its disk, Trouble returns an error and does not wait.
func TestTroubleNeverWaits(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // as during a write
	s.begin()
	if err := s.Trouble(); err != nil {
		t.Errorf("a write that has just begun: %v", err)
	}
	s.writing = s.writing.Add(-time.Minute)
	if err := s.Trouble(); err == nil || !strings.Contains(err.Error(), "hangs") {
		t.Errorf("a write of a minute: %v", err)
	}
	s.end(nil)
	s.mu.Unlock()
	if err := s.Trouble(); err != nil {
		t.Errorf("after the write: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
