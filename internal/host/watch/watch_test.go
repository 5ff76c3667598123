package watch_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestWatchMounts(t *testing.T) {
	need.Root(t, "mounts a tmpfs")
	calls := hosttest.WatchCalls(t, func(ctx context.Context, changed func()) error {
		return watch.WatchMounts(ctx, os.Getpid(), changed)
	})
	dir := t.TempDir()
	hosttest.Until(t, calls, "mount and unmount", func() {
		if err := unix.Mount("nodeagent-test", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	})
	if err := watch.WatchMounts(t.Context(), 1<<30, func() {}); err == nil {
		t.Error("no such process, want an error")
	}
}

func TestWatchDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	calls := hosttest.WatchCalls(t, func(ctx context.Context, changed func()) error {
		return watch.WatchDir(ctx, dir, changed)
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	touch := func() { must(os.WriteFile(filepath.Join(dir, "a-reg.sock"), nil, 0o600)) }
	remove := func() { must(os.RemoveAll(filepath.Join(dir, "a-reg.sock"))) }
	hosttest.Until(t, calls, "directory comes and goes", func() { must(os.RemoveAll(dir)); must(os.Mkdir(dir, 0o755)) })
	hosttest.Until(t, calls, "create", func() { touch(); remove() })
	hosttest.Until(t, calls, "directory goes", func() { must(os.RemoveAll(dir)) })
	must(os.Mkdir(dir, 0o755))
	hosttest.Until(t, calls, "directory is back", func() {})
	hosttest.Until(t, calls, "create in the new one", func() { touch(); remove() })
}
