package host_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/test/need"
)

// watch runs a watcher and returns a channel of its calls. It ends, and must end at once, with the test.
func watch(t *testing.T, run func(ctx context.Context, changed func()) error) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	calls, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, func() {
			select {
			case calls <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("watcher ended: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("watcher goes on")
		}
	})
	return calls
}

// until repeats act, since a watcher begins at its own time, until it is told.
func until(t *testing.T, calls <-chan struct{}, what string, act func()) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	for {
		act()
		select {
		case <-calls:
			return
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not told: %s", what)
		}
	}
}

func TestWatchMounts(t *testing.T) {
	need.Root(t, "mounts a tmpfs")
	calls := watch(t, func(ctx context.Context, changed func()) error { return host.WatchMounts(ctx, os.Getpid(), changed) })
	dir := t.TempDir()
	until(t, calls, "mount and unmount", func() {
		if err := unix.Mount("nodeagent-test", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	})
	if err := host.WatchMounts(t.Context(), 1<<30, func() {}); err == nil {
		t.Error("no such process, want an error")
	}
}

func TestWatchDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	calls := watch(t, func(ctx context.Context, changed func()) error { return host.WatchDir(ctx, dir, changed) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	touch := func() { must(os.WriteFile(filepath.Join(dir, "a-reg.sock"), nil, 0o600)) }
	remove := func() { must(os.RemoveAll(filepath.Join(dir, "a-reg.sock"))) }
	until(t, calls, "directory comes and goes", func() { must(os.RemoveAll(dir)); must(os.Mkdir(dir, 0o755)) })
	until(t, calls, "create", func() { touch(); remove() })
	until(t, calls, "directory goes", func() { must(os.RemoveAll(dir)) })
	must(os.Mkdir(dir, 0o755))
	until(t, calls, "directory is back", func() {})
	until(t, calls, "create in the new one", func() { touch(); remove() })
}
