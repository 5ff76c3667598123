package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStoreSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent", "state.db")
	s := open(t, path)
	tracker := finding.NewTracker(nil, nil)
	tracker.Observe(finding.Observation{
		Check: "disk", At: finding.Timestamp{Wall: time.Unix(1_800_000_001, 0).UTC(), Boot: "boot-1",
			SinceBoot: time.Second},
		Findings: []finding.Finding{{
			Check: "disk", Subject: finding.Subject{Kind: "filesystem", Name: "/data"}, Severity: finding.Fatal,
			Reason: "ReadOnly", Message: "m",
		}},
	})
	if err := s.SaveCheck("disk", tracker.State()["disk"]); err != nil {
		t.Fatal(err)
	}
	if err := s.Bucket("outbox").Put("b", []byte("2")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a second agent on the same file: got %v, want ErrInUse", err)
	}
	s.Close()

	s = open(t, path)
	state, err := s.LoadState()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tracker.State(), state); diff != "" {
		t.Errorf("state (-saved +loaded):\n%s", diff)
	}
	if value, ok := s.Bucket("outbox").Get("b"); !ok || string(value) != "2" {
		t.Errorf("outbox: got %q, %v", value, ok)
	}
	if err := s.Trouble(); err != nil {
		t.Errorf("trouble: %v", err)
	}
}

// TestStoreCorrupt damages a state file in several ways; each time the agent starts afresh, reports it and keeps the
// file.
func TestStoreCorrupt(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string, size int64){
		"garbage": func(t *testing.T, path string, size int64) {
			write(t, path, make([]byte, size))
		},
		"text": func(t *testing.T, path string, _ int64) { write(t, path, []byte("not a database\n")) },
		"cut short": func(t *testing.T, path string, _ int64) {
			if err := os.Truncate(path, 2*int64(os.Getpagesize())); err != nil {
				t.Fatal(err)
			}
		},
		"torn pages": func(t *testing.T, path string, size int64) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 2 * os.Getpagesize(); i < len(data); i++ {
				data[i] = 0xff
			}
			write(t, path, data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			s := open(t, path)
			for i := range 200 {
				if err := s.Bucket("outbox").Put(string(rune('a'+i%26))+string(rune('a'+i/26)),
					make([]byte, 500)); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			damage(t, path, info.Size())

			s = open(t, path)
			if s.Trouble() == nil {
				t.Error("the loss of the state was not reported")
			}
			if err := s.Bucket("outbox").Put("a", []byte("new")); err != nil {
				t.Errorf("the new file cannot be written: %v", err)
			}
			if _, err := os.Stat(path + ".corrupt"); err != nil {
				t.Errorf("the corrupt file was not kept: %v", err)
			}
		})
	}
}

func TestStoreWithoutDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	s := open(t, filepath.Join(file, "state.db")) // the folder cannot be created
	if s.Trouble() == nil {
		t.Error("it was not reported that nothing is saved")
	}
	if err := s.Bucket("outbox").Put("a", []byte("1")); err != nil {
		t.Errorf("memory only: %v", err)
	}
	if value, ok := s.Bucket("outbox").Get("a"); !ok || string(value) != "1" {
		t.Errorf("got %q, %v", value, ok)
	}
	if err := s.Bucket("outbox").Delete("a"); err != nil {
		t.Error(err)
	}
	if _, ok := s.Bucket("outbox").Get("a"); ok {
		t.Error("still there after Delete")
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
