package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/test/need"
)

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	need.Root(t, "mounts a tmpfs")
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// large is an event with a text of this many bytes.
func large(sequence uint64, size int) journal.Event {
	e := of("a", sequence)
	e.JSON = fmt.Appendf(nil, `{"n":%d,"text":%q}`, sequence, strings.Repeat("x", size))
	return e
}

// On a full disk, writes fail and reads work; when space is free again, writes continue, and each acknowledged event is
// there exactly once.
func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "8m")
	must(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 4<<20), 0o600))
	s, err := Open(t.Context(), Options{Dir: filepath.Join(dir, "j"), Log: slog.New(slog.DiscardHandler),
		BallastBytes: 1 << 20})
	must(t, err)
	acked := uint64(0)
	for err == nil && acked < 10_000 {
		if _, err = s.Append(t.Context(), []journal.Event{large(acked+1, 4000)}); err == nil {
			acked++
		}
	}
	if !errors.Is(err, journal.ErrFull) || acked < 50 {
		t.Fatalf("after %d events: %v", acked, err)
	}
	for range 3 {
		if _, err := s.Append(t.Context(), []journal.Event{large(acked+1, 4000)}); !errors.Is(err, journal.ErrFull) {
			t.Errorf("taken on a full disk: %v", err)
		}
	}
	page, err := s.Read(t.Context(), journal.Query{After: acked - 10, Limit: 100})
	if err != nil || len(page.Records) != 10 {
		t.Errorf("%d of the last 10 can be read: %v", len(page.Records), err)
	}
	if s.Health().FullSince.IsZero() {
		t.Error("nobody is told that the disk is full")
	}
	if _, err := os.Stat(s.ballast()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ballast is not freed: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "filler")))
	if _, err := s.Append(t.Context(), []journal.Event{large(acked, 4000), large(acked+1, 4000)}); err != nil {
		t.Fatalf("there is room again: %v", err)
	}
	if !s.Health().FullSince.IsZero() {
		t.Error("still full")
	}
	if _, err := os.Stat(s.ballast()); err != nil {
		t.Errorf("no new ballast: %v", err)
	}
	if gaps, err := s.Check(t.Context(), WithoutRest); err != nil || len(gaps) > 0 || s.Bounds().Newest != acked+1 {
		t.Errorf("newest %d of %d, gaps %v: %v", s.Bounds().Newest, acked+1, gaps, err)
	}
	must(t, s.Close())
}

// If a disk is full when a new day begins, the day's file that could not be completed is not used: later events go into
// one that readers know.
func TestFullAtMidnight(t *testing.T) {
	dir := tmpfs(t, "24m")
	c := journaltest.NewClock()
	s := openTest(t, filepath.Join(dir, "j"), Options{Now: c.Now})
	const streams = 10_000 // the new file begins with their watermarks
	var events []journal.Event
	for i := range streams {
		events = append(events, of(fmt.Sprint("node-", i), 1))
	}
	journaltest.Append(t, s, events...)
	if _, err := s.writer.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	free, err := s.free()
	must(t, err)
	filler := filepath.Join(dir, "filler")
	must(t, os.WriteFile(filler, make([]byte, free-300<<10), 0o600)) // enough for an empty file
	c.Add(24 * time.Hour)
	for range 2 {
		if _, err := s.Append(t.Context(), []journal.Event{of("node-0", 2)}); !errors.Is(err, journal.ErrFull) {
			t.Fatalf("taken on a full disk: %v", err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(s.Dir, "*.db")); len(files) != 1 {
		t.Errorf("files: %v", files)
	}
	must(t, os.Remove(filler))
	journaltest.Append(t, s, of("node-0", 2), of("node-1", 2))
	if got := journaltest.Texts(t, s, journal.Query{After: streams}); len(got) != 2 || got[0] != "10001 node-0/2" {
		t.Errorf("what was acknowledged is read as %v", got)
	}
	must(t, s.Close())
}

// Acknowledged events that are only in the write-ahead log are reported as a gap if the log is damaged.
func TestDamagedLog(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	s := openTest(t, dir, Options{})
	journaltest.Append(t, s, of("a", 1))
	journaltest.Append(t, s, of("a", 2))
	journaltest.Append(t, s, of("a", 3))
	files, err := os.ReadDir(dir) // as after a kill
	must(t, err)
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		must(t, err)
		if strings.HasSuffix(file.Name(), "-wal") {
			data[len(data)-100] ^= 1 // in the last frame, which belongs to the last event
		}
		if strings.HasSuffix(file.Name(), "-shm") {
			continue
		}
		must(t, os.WriteFile(filepath.Join(copied, file.Name()), data, 0o600))
	}
	s = openTest(t, copied, Options{})
	journaltest.Append(t, s, of("a", 4))
	journaltest.Expect(t, s, "1 a/1", "2 a/2", "4 a/4", "gap 3-3")
}
