package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/test/need"
)

// onTmpfs returns a journal on a small file system of its own, and the name of a file beside it that fills it.
func onTmpfs(t *testing.T, size string) (k *kit, filler string) {
	t.Helper()
	need.Root(t, "mounts a tmpfs")
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return newKitIn(t, filepath.Join(dir, "j")), filepath.Join(dir, "filler")
}

// expectFull fails the test if an event is taken.
func (k *kit) expectFull(e journal.Event) {
	k.t.Helper()
	if _, err := k.Append(k.t.Context(), []journal.Event{e}); !errors.Is(err, journal.ErrFull) {
		k.t.Fatalf("taken on a full disk: %v", err)
	}
}

// On a full disk, writes fail and reads work; when space is free again, writes continue, and each acknowledged event is
// there exactly once.
func TestFullDisk(t *testing.T) {
	k, filler := onTmpfs(t, "8m")
	must(t, os.WriteFile(filler, make([]byte, 4<<20), 0o600))
	acked, err := uint64(0), error(nil)
	for err == nil && acked < 10_000 {
		if _, err = k.Append(t.Context(), []journal.Event{large(acked+1, 4000)}); err == nil {
			acked++
		}
	}
	if !errors.Is(err, journal.ErrFull) || acked < 50 {
		t.Fatalf("after %d events: %v", acked, err)
	}
	for range 3 {
		k.expectFull(large(acked+1, 4000))
	}
	page, err := k.Read(t.Context(), journal.Query{After: acked - 10, Limit: 100})
	if err != nil || len(page.Records) != 10 {
		t.Errorf("%d of the last 10 can be read: %v", len(page.Records), err)
	}
	full := func(want bool) {
		t.Helper()
		_, err := os.Stat(k.ballast())
		if is, freed := !k.Health().FullSince.IsZero(), errors.Is(err, os.ErrNotExist); is != want || freed != want {
			t.Errorf("full %t, ballast freed %t (%v), want %t", is, freed, err, want)
		}
	}
	full(true)
	must(t, os.Remove(filler))
	k.append(large(acked, 4000), large(acked+1, 4000))
	full(false)
	k.expectLost()
	if newest := k.Bounds().Newest; newest != acked+1 {
		t.Errorf("newest %d of %d", newest, acked+1)
	}
}

// If a disk is full when a new day begins, the day's file that could not be completed is not used: later events go into
// one that readers know.
func TestFullAtMidnight(t *testing.T) {
	k, filler := onTmpfs(t, "24m")
	const streams = 10_000 // the new file begins with their watermarks
	var events []journal.Event
	for i := range streams {
		events = append(events, of(fmt.Sprint("node-", i), 1))
	}
	k.append(events...)
	_, err := k.writer.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	free, err := k.free()
	must(t, err)
	must(t, os.WriteFile(filler, make([]byte, free-300<<10), 0o600)) // enough for an empty file
	k.clock.Add(day)
	for range 2 {
		k.expectFull(of("node-0", 2))
	}
	if files := k.files(); len(files) != 1 {
		t.Errorf("files: %v", files)
	}
	must(t, os.Remove(filler))
	k.append(of("node-0", 2), of("node-1", 2))
	if got := journaltest.Texts(t, k, journal.Query{After: streams}); len(got) != 2 || got[0] != "10001 node-0/2" {
		t.Errorf("what was acknowledged is read as %v", got)
	}
}
