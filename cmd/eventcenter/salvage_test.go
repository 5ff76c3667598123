package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// The directory of a running center is not salvaged. A salvage that fails leaves no directory, so that it can be repeated.
func TestSalvageRefused(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1)))
	refused := func(want string) {
		t.Helper()
		if out, code := cli(t, "salvage", dir, to); code != exitCouldNotTell || !strings.Contains(out, want) {
			t.Errorf("%d, want %q in %s", code, want, out)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s is there", to)
		}
	}
	refused("stop the center")
	p.stop(syscall.SIGTERM)
	uuid := filepath.Join(dir, "journal", "uuid")
	must(t, os.Rename(uuid, uuid+".lost"))
	refused("UUID")
	must(t, os.Rename(uuid+".lost", uuid))
	if out, code := cli(t, "salvage", dir, to); code != exitFine || !strings.Contains(out, "1 events") {
		t.Errorf("%d %s", code, out)
	}
}

// The verbs verify and salvage a directory on a read-only disk after a clean stop.
func TestSalvageReadOnlyDisk(t *testing.T) {
	disk := hosttest.NewLoopFS(t, "ext4")
	mount := filepath.Join(t.TempDir(), "disk")
	disk.Mount(mount, "rw")
	dir := filepath.Join(mount, "center")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	p.stop(syscall.SIGTERM)
	disk.Remount(mount, "ro")
	to := filepath.Join(t.TempDir(), "new")
	for want, args := range map[string][]string{"offsets 1 to 2": {"verify", "--dir", dir}, "2 events": {"salvage", dir, to}} {
		if out, code := cli(t, args...); code != exitFine || !strings.Contains(out, want) {
			t.Errorf("%v: %d, want %q in %s", args, code, want, out)
		}
	}
	p = start(t, to)
	must(t, p.post(raised("node-2", 2)))
}
