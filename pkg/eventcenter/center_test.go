package eventcenter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

func open(t *testing.T, dir string, keep journal.Limits) (*Center, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c, err := Open(t.Context(), Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)), Keep: keep})
	expecttest.OK(t, err)
	return c, &log
}

func (c *Center) raise(t *testing.T, sequence uint64) {
	t.Helper()
	journaltest.Append(t, c.Journal, journaltest.Raised(t, "n", sequence))
}

func (c *Center) faults() int {
	all, _ := c.Model.Faults(func(model.NodeFault) bool { return true })
	return len(all)
}

func verified(t *testing.T, dir string) Verification {
	t.Helper()
	v, err := Verify(t.Context(), dir)
	expecttest.OK(t, err)
	return v
}

// edit replaces a text in a file once.
func edit(t *testing.T, name, from, to string) {
	t.Helper()
	data, err := os.ReadFile(name)
	expecttest.OK(t, err)
	changed := bytes.Replace(data, []byte(from), []byte(to), 1)
	if bytes.Equal(data, changed) {
		t.Fatalf("%s lacks %s", name, from)
	}
	expecttest.OK(t, os.WriteFile(name, changed, 0o600))
}

// days creates a journal of three files, as if each event were on another day.
func days(t *testing.T, dir string) {
	t.Helper()
	now := time.Now().Add(-72 * time.Hour)
	store, err := sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(dir, journalDir),
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	expecttest.OK(t, err)
	for sequence := range uint64(3) {
		journaltest.Append(t, store, journaltest.Raised(t, "n", sequence+1))
		now = now.Add(24 * time.Hour)
	}
	expecttest.OK(t, store.Close())
}

// The base includes trimmed days: the state does not change, and base and journal still yield it.
func TestTrimmed(t *testing.T) {
	dir := t.TempDir()
	days(t, dir)
	c, _ := open(t, dir, journal.Limits{Bytes: 1})
	expecttest.OK(t, c.trim(t.Context()))
	expecttest.Equal(t, "oldest of the last day", 3, c.Journal.Bounds().Oldest)
	c.raise(t, 4)
	expecttest.OK(t, c.Close())
	if v := verified(t, dir); !v.Fine() || v.Checkpoint != 4 {
		t.Errorf("%+v", v)
	}
	expecttest.OK(t, os.Remove(filepath.Join(dir, checkpointFile)))
	c, log := open(t, dir, journal.Limits{})
	if c.faults() != 4 || log.Len() > 0 {
		t.Errorf("%d faults of 4 without the checkpoint: %s", c.faults(), log)
	}
	expecttest.OK(t, c.Close())
}

// A damaged checkpoint, or one of another journal or version, is not used.
func TestLostCheckpoint(t *testing.T) {
	for name, text := range map[string]string{"damaged": "{", "of another journal": `{"version":1,"journal":"x"}`,
		"empty": "", "of another version": `{"version":2,"journal":"ID"}`, "cut off": `{"version":1,"journal":"ID","nodes":1}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			days(t, dir)
			text = strings.ReplaceAll(text, "ID", verified(t, dir).Journal)
			expecttest.OK(t, os.WriteFile(filepath.Join(dir, checkpointFile), []byte(text), 0o600))
			c, log := open(t, dir, journal.Limits{})
			expecttest.Equal(t, "faults", 3, c.faults())
			expecttest.Has(t, "log", log.String(), "checkpoint")
			expecttest.OK(t, c.Close())
		})
	}
}

// If the file of the last day is lost, the center counts that day again from the journal.
func TestLostDay(t *testing.T) {
	dir := t.TempDir()
	days(t, dir)
	c, _ := open(t, dir, journal.Limits{})
	expecttest.OK(t, errors.Join(c.Reports.Follow(), c.Close()))
	files, err := filepath.Glob(filepath.Join(dir, reportsDir, "*"))
	expecttest.OK(t, err)
	if len(files) < 3 {
		t.Fatalf("%q", files)
	}
	name := files[len(files)-1]
	want, err := os.ReadFile(name)
	expecttest.OK(t, err)
	expecttest.OK(t, os.Remove(name))
	c, log := open(t, dir, journal.Limits{})
	expecttest.Has(t, "log", log.String(), "the start takes longer")
	expecttest.OK(t, errors.Join(c.Reports.Follow(), c.Close()))
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
	expecttest.OK(t, os.Remove(reports))
	expecttest.OK(t, os.WriteFile(reports, nil, 0o600))
	c.Model.Advance(time.Now().AddDate(0, 0, 1))
	if err := c.Checkpoint(); err == nil {
		t.Error("a checkpoint without the day")
	}
	if _, err := os.Stat(filepath.Join(dir, checkpointFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	expecttest.OK(t, errors.Join(os.Remove(reports), os.Mkdir(reports, 0o700), c.Close()))
	if files, err := filepath.Glob(filepath.Join(reports, "*")); err != nil || len(files) != 1 {
		t.Errorf("%q %v", files, err)
	}
}

// verify finds a state, or a count, that differs from the journal's.
func TestVerify(t *testing.T) {
	for from, to := range map[string]string{`"severity":"fatal"`: `"severity":"info"`, `"found":1`: `"found":2`} {
		dir := t.TempDir()
		days(t, dir)
		c, _ := open(t, dir, journal.Limits{})
		c.raise(t, 4)
		expecttest.OK(t, c.Close())
		if v := verified(t, dir); !v.Fine() || v.Checkpoint != 4 {
			t.Errorf("%+v", v)
		}
		edit(t, filepath.Join(dir, checkpointFile), from, to)
		if v := verified(t, dir); len(v.Differences) != 1 || v.Fine() {
			t.Errorf("a checkpoint with %s: %+v", to, v)
		}
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
		expecttest.Equal(t, "rest after ten minutes", checkRests*10*time.Minute, (<-rested).Sub(began))
		cancel()
		expecttest.OK(t, <-ended)
		expecttest.OK(t, c.Close())
	})
}
