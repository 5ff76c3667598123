package eventcenter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func open(t *testing.T, dir string, keep journal.Limits) (*Center, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c, err := Open(t.Context(), Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)), Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	return c, &log
}

func (c *Center) raise(t *testing.T, sequence uint64) {
	t.Helper()
	f := event.Fault{ID: "x", Check: "disk", Subject: finding.Subject{Kind: "disk", Name: fmt.Sprint(sequence)},
		Severity: finding.Fatal, Reason: "Fails"}
	e := event.Event{Type: event.FaultRaised, Cluster: "c", Node: "n", Time: time.Unix(1, 0).UTC(),
		Severity: finding.Fatal, Stream: "01J9AAAAAAAAAAAAAAAAAAAAAA", Sequence: sequence, Data: f}
	text, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	j := journal.Event{Source: "/clusters/c/nodes/n", ID: e.ID(), Type: string(e.Type), Cluster: "c", Node: "n",
		Stream: e.Stream, Sequence: sequence, JSON: text}
	if _, err := c.Journal.Append(t.Context(), []journal.Event{j}); err != nil {
		t.Fatal(err)
	}
}

func (c *Center) faults() int {
	all, _ := c.Model.Faults(func(model.NodeFault) bool { return true })
	return len(all)
}

func verified(t *testing.T, dir string) Verification {
	t.Helper()
	v, err := Verify(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// days creates a journal of three files, as if each event were on another day.
func days(t *testing.T, dir string) {
	t.Helper()
	now := time.Now().Add(-72 * time.Hour)
	for sequence := range uint64(3) {
		c := &Center{Options: Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}}
		var err error
		c.Journal, err = sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(dir, journalDir), Log: c.Log,
			Now: func() time.Time { return now }})
		must(t, err)
		c.raise(t, sequence+1)
		must(t, c.Journal.Close())
		now = now.Add(24 * time.Hour)
	}
}

// The base includes trimmed days: the state does not change, and base and journal still yield it.
func TestTrimmed(t *testing.T) {
	dir := t.TempDir()
	days(t, dir)
	c, _ := open(t, dir, journal.Limits{Bytes: 1})
	must(t, c.trim(t.Context()))
	if oldest := c.Journal.Bounds().Oldest; oldest != 3 {
		t.Errorf("oldest %d: two of three days are to be gone", oldest)
	}
	c.raise(t, 4)
	must(t, c.Close())
	if v := verified(t, dir); !v.Fine() || v.Checkpoint != 4 {
		t.Errorf("%+v", v)
	}
	must(t, os.Remove(filepath.Join(dir, checkpointFile)))
	c, log := open(t, dir, journal.Limits{})
	if c.faults() != 4 || log.Len() > 0 {
		t.Errorf("%d faults of 4 without the checkpoint: %s", c.faults(), log)
	}
	must(t, c.Close())
}

// A damaged checkpoint, or one of another journal or version, is not used.
func TestLostCheckpoint(t *testing.T) {
	for name, text := range map[string]string{"damaged": "{", "of another journal": `{"version":1,"journal":"x"}`,
		"empty": "", "of another version": `{"version":2,"journal":"ID"}`, "cut off": `{"version":1,"journal":"ID","nodes":1}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			days(t, dir)
			id, err := os.ReadFile(filepath.Join(dir, journalDir, "uuid"))
			must(t, err)
			text = strings.ReplaceAll(text, "ID", strings.TrimSpace(string(id)))
			must(t, os.WriteFile(filepath.Join(dir, checkpointFile), []byte(text), 0o600))
			c, log := open(t, dir, journal.Limits{})
			if c.faults() != 3 || !strings.Contains(log.String(), "checkpoint") {
				t.Errorf("%d faults of 3: %s", c.faults(), log)
			}
			must(t, c.Close())
		})
	}
}

// If the file of the last day is lost, the center counts that day again from the journal.
func TestLostDay(t *testing.T) {
	dir := t.TempDir()
	days(t, dir)
	c, _ := open(t, dir, journal.Limits{})
	must(t, c.Reports.Follow())
	must(t, c.Close())
	files, err := filepath.Glob(filepath.Join(dir, reportsDir, "*"))
	must(t, err)
	if len(files) < 3 {
		t.Fatalf("%q", files)
	}
	name := files[len(files)-1]
	want, err := os.ReadFile(name)
	must(t, err)
	must(t, os.Remove(name))
	c, log := open(t, dir, journal.Limits{})
	if !strings.Contains(log.String(), "the start takes longer") {
		t.Errorf("%s", log)
	}
	must(t, c.Reports.Follow())
	must(t, c.Close())
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v", err)
	}
}

// A checkpoint, which has no finished day, waits until that day is stored.
func TestCheckpointAfterDay(t *testing.T) {
	dir := t.TempDir()
	c, _ := open(t, dir, journal.Limits{})
	c.raise(t, 1)
	reports := filepath.Join(dir, reportsDir)
	must(t, os.Remove(reports))
	must(t, os.WriteFile(reports, nil, 0o600))
	c.Model.Advance(time.Now().AddDate(0, 0, 1))
	if err := c.Checkpoint(); err == nil {
		t.Error("a checkpoint without the day")
	}
	if _, err := os.Stat(filepath.Join(dir, checkpointFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	must(t, errors.Join(os.Remove(reports), os.Mkdir(reports, 0o700), c.Close()))
	if files, err := filepath.Glob(filepath.Join(reports, "*")); err != nil || len(files) != 1 {
		t.Errorf("%q %v", files, err)
	}
}

// verify finds a state that differs from the journal's.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	days(t, dir)
	c, _ := open(t, dir, journal.Limits{})
	must(t, c.Close())
	if v := verified(t, dir); !v.Fine() || v.Checkpoint != 3 {
		t.Errorf("%+v", v)
	}
	name := filepath.Join(dir, checkpointFile)
	text, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, bytes.Replace(text, []byte(`"severity":"fatal"`), []byte(`"severity":"info"`), 1), 0o600))
	if v := verified(t, dir); len(v.Differences) != 1 || v.Fine() {
		t.Errorf("a changed checkpoint: %+v", v)
	}
	must(t, os.Remove(name))
	c, _ = open(t, dir, journal.Limits{})
	c.raise(t, 4)
	must(t, c.Close())
	text, err = os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, bytes.Replace(text, []byte(`"found":1`), []byte(`"found":2`), 1), 0o600))
	if v := verified(t, dir); len(v.Differences) != 1 || v.Fine() {
		t.Errorf("a checkpoint with a changed count: %+v", v)
	}
}

// restingCheck is a journal whose check claims that a step took ten minutes.
type restingCheck struct {
	Journal
	rested chan time.Time
}

func (j restingCheck) Check(_ context.Context, rest func(time.Duration)) ([]journal.Gap, error) {
	rest(10 * time.Minute)
	j.rested <- time.Now()
	return nil, nil
}

// The check of all files leaves time for the center, and upkeep continues during it.
func TestUpkeepBesideTheCheck(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, dir, journal.Limits{})
		c.raise(t, 1)
		rested := make(chan time.Time, 1)
		c.Journal = restingCheck{c.Journal, rested}
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(checkpointEvery + 2*upkeepEvery)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(dir, checkpointFile)); err != nil {
			t.Errorf("no checkpoint while all files are checked: %v", err)
		}
		if len(rested) > 0 {
			t.Error("the check goes on at once")
		}
		if took := (<-rested).Sub(began); took != checkRests*10*time.Minute {
			t.Errorf("the check rests %s after ten minutes", took)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
