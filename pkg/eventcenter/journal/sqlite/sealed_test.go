package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// A log of another file next to a sealed one is not applied: the sealed file's contents stay the same.
func TestSealedFileWithForeignLog(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	journaltest.Append(t, s, of("a", 1), of("a", 2), foreign("1"))
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, of("a", 3))
	must(t, s.Seal(t.Context()))
	must(t, s.Close())
	other := openTest(t, t.TempDir(), Options{Now: c.Now})
	journaltest.Append(t, other, of("b", 1), foreign("2"))
	log, err := os.ReadFile(filepath.Join(other.Dir, partitionName(1)) + "-wal")
	must(t, err)
	beside := filepath.Join(dir, partitionName(1)) + "-wal"
	must(t, os.WriteFile(beside, log, 0o600))
	for _, readOnly := range []bool{true, false} {
		s = openTest(t, dir, Options{Now: c.Now, ReadOnly: readOnly})
		journaltest.Expect(t, s, "1 a/1", "2 a/2", "3 /0", "4 a/3")
		if gaps := s.Health().Gaps; len(gaps) > 0 {
			t.Errorf("gaps: %v", gaps)
		}
		if !readOnly {
			if done := journaltest.Append(t, s, of("a", 2), foreign("1"), of("a", 4)); done.Duplicates != 2 || done.New != 1 {
				t.Errorf("%+v", done)
			}
		}
		must(t, s.Close())
	}
}

// A stream that was silent for days is still known: its earlier events are duplicates, even after a restart. It is
// forgotten after the time for which events are kept.
func TestSilentStreams(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now, Keep: 10 * 24 * time.Hour})
	journaltest.Append(t, s, of("silent", 1), of("silent", 2))
	for day := range uint64(8) {
		c.Add(24 * time.Hour)
		journaltest.Append(t, s, of("a", day+1))
		if day%3 == 0 {
			must(t, s.Close())
			s = openTest(t, dir, Options{Now: c.Now, Keep: 10 * 24 * time.Hour})
		}
		if done := journaltest.Append(t, s, of("silent", 2), of("silent", 1)); done.Duplicates != 2 {
			t.Fatalf("day %d: %+v", day, done)
		}
	}
	if done := journaltest.Append(t, s, of("silent", 3)); done.New != 1 {
		t.Errorf("%+v", done)
	}
	for i := range 5 {
		journaltest.Append(t, s, of(fmt.Sprint("short-", i), 1))
	}
	for n := range uint64(2) { // after the first alone, the clock may have jumped
		c.Add(11 * 24 * time.Hour)
		journaltest.Append(t, s, of("a", 9+n))
	}
	if n := len(s.writer.streams); n != 1 {
		t.Errorf("%d streams are remembered", n)
	}
}
