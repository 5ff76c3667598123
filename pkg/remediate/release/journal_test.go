package release

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
	"github.com/nodeagent/nodeagent/test/need"
)

func open(t *testing.T, dir string) *journal {
	t.Helper()
	j, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func write(t *testing.T, j *journal, records ...Record) {
	t.Helper()
	for _, r := range records {
		if err := j.write(r); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash may cut the last line anywhere.
func TestJournalTornAnywhere(t *testing.T) {
	whole := t.TempDir()
	want := []Record{
		{At: ago(time.Hour), Event: Begin, Group: uid1},
		{At: ago(time.Minute), Event: Intent, Group: uid1, Kind: object.Cgroup, ID: "/c"},
	}
	write(t, open(t, whole), want...)
	data, err := os.ReadFile(filepath.Join(whole, journalName))
	if err != nil {
		t.Fatal(err)
	}
	first := strings.Index(string(data), "\n") + 1
	for cut := first; cut < len(data); cut++ {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, journalName), data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, open(t, dir), want[1])
		got, skipped, err := ReadJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		wanted := want
		if cut == len(data)-1 { // only the end of the line is missing
			wanted = append(want[:2:2], want[1])
		}
		if diff := cmp.Diff(wanted, got); diff != "" || skipped > 1 {
			t.Fatalf("cut at %d: %d skipped, %s", cut, skipped, diff)
		}
	}
}

func TestJournalRotates(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	for range 40 {
		write(t, j, Record{Event: End, Group: uid1, Why: strings.Repeat("x", 60<<10)})
		if err := j.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	write(t, j, Record{At: ago(0), Event: Begin, Group: uid2})
	var size int64
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, _ := e.Info()
		size += info.Size()
	}
	if len(entries) != 2 || size > 3*maxJournal {
		t.Errorf("%d files, %d bytes", len(entries), size)
	}
	records, _, err := ReadJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if last := records[len(records)-1]; last.Group != uid2 {
		t.Errorf("last record %+v", last)
	}
}

func TestJournalFullDisk(t *testing.T) {
	need.Root(t, "mounts a small filesystem")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, 2) })
	j := open(t, dir)
	var err error
	for n := 0; n < 100 && err == nil; n++ {
		err = j.write(Record{Event: Intent, Group: uid1, Why: strings.Repeat("x", 500)})
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	j.Close()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(dir); !errors.Is(err, syscall.EROFS) {
		t.Errorf("read-only: %v", err)
	}
}

// Records that earlier versions wrote, with identities as objects of texts, are read, and written in the same form.
func TestJournalOfEarlierVersions(t *testing.T) {
	const head = `{"at":{"wall":"2026-01-02T03:04:05Z","boot":"b","up":6000000000},"event":"intent","group":"u",` +
		`"pod":{"uid":"u","namespace":"n","name":"p"},`
	dir := t.TempDir()
	lines := head + `"kind":"mount","id":"/p#31","identity":{"device":"0:9","id":"31","point":"/p","root":"/",` +
		`"source":"tmpfs","type":"tmpfs"},"does":"unmount /p (tmpfs)"}` + "\n" +
		head + `"kind":"process","id":"7","identity":{"pid":"7","startTime":"5"},"does":"thaw"}` + "\n" +
		head + `"kind":"pod-directory","id":"/d","identity":{"device":"8:1","inode":"12"},"does":"remove"}` + "\n" +
		`{"at":{"wall":"2026-01-02T03:04:05Z","boot":"b","up":6000000000},"event":"begin","group":"u"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, journalName), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	records, skipped, err := ReadJournal(dir)
	if err != nil || skipped > 0 || len(records) != 4 {
		t.Fatalf("%d records, %d skipped, %v", len(records), skipped, err)
	}
	mount := object.MountID{ID: 31, Device: "0:9", Root: "/", Point: "/p", Source: "tmpfs", Type: "tmpfs"}
	if records[0].Identity.Mount != mount || records[1].Identity.Process != (object.ProcessID{PID: 7, StartTime: 5}) ||
		records[2].Identity.File != (object.FileID{Device: "8:1", Inode: 12}) {
		t.Errorf("%+v", records)
	}
	again := t.TempDir()
	write(t, open(t, again), records...)
	if text, err := os.ReadFile(filepath.Join(again, journalName)); err != nil || string(text) != lines {
		t.Errorf("%v: %s", err, text)
	}
}

func TestJournalMemory(t *testing.T) {
	records := []Record{
		{At: ago(5 * time.Hour), Event: Begin, Group: "whole"}, {Event: Finish, Group: "whole", Result: Released},
		{At: ago(4 * time.Hour), Event: Begin, Group: "part"},
		{Event: Intent, Group: "part", Kind: object.Mount, ID: "m"}, {Event: End, Group: "part", Kind: object.Mount,
			ID: "m", Result: Failed},
		{Event: Finish, Group: "part", Result: Incomplete},
		{At: ago(3 * time.Hour), Event: Begin, Group: "stopped"},
		{Event: Finish, Group: "stopped", Result: Interrupted},
		{At: ago(time.Hour), Event: Begin, Group: "cut"}, {Event: Intent, Group: "cut", Kind: object.Process, ID: "7"},
	}
	want := map[string]Attempt{
		"whole":   {At: ago(5 * time.Hour), Finished: true, Complete: true, Idle: true},
		"part":    {At: ago(4 * time.Hour), Finished: true},
		"stopped": {At: ago(3 * time.Hour), Idle: true},
		"cut":     {At: ago(time.Hour)},
	}
	if diff := cmp.Diff(want, attempts(records)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(records[8:], unfinished(records)); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseJournal(f *testing.F) {
	f.Add([]byte(`{"event":"begin","group":"g"}` + "\n" + `{"event":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, _ := wal.Parse(data, Record.valid)
		attempts(records)
		if cut := unfinished(records); len(cut) > len(records) {
			t.Error("more unfinished than records")
		}
	})
}

// A release that only waited does not count as a try: see idleRetry.
func TestAttemptsIdle(t *testing.T) {
	records := []Record{
		{Event: Begin, Group: "waited"}, {Event: Finish, Group: "waited", Result: Incomplete},
		{Event: Begin, Group: "tried"}, {Event: Intent, Group: "tried"}, {Event: End, Group: "tried"},
		{Event: Finish, Group: "tried", Result: Incomplete},
	}
	all := attempts(records)
	if !all["waited"].Idle || all["tried"].Idle || !all["tried"].Finished {
		t.Errorf("%+v", all)
	}
}
