package hosttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// WriteHostFile writes a file of the host, and creates its folders.
func WriteHostFile(t *testing.T, h *host.Host, name, content string) {
	t.Helper()
	file := filepath.Join(h.Files.Root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Write writes a file below root, and creates its folders.
func Write(t *testing.T, root, name, content string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// WriteStat writes /proc/PID/stat of a process.
func WriteStat(t testing.TB, h *host.Host, pid int, text string) {
	t.Helper()
	dir := filepath.Join(h.Files.Root, "proc", fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const StatTail = " 1 1 0 -1 4194560 2 0 0 0 5 6 0 0 20 0 1 0 339 2535424 200 18446744073709551615"

// ShortDir returns a directory whose path leaves room for a socket's name: t.TempDir contains the name of the test.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "na")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Within returns a context that ends after limit, or with the test.
func Within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// WatchCalls runs a watcher and returns a channel of its calls. The watcher ends, and must end at once, with the test.
func WatchCalls(t *testing.T, run func(ctx context.Context, changed func()) error) <-chan struct{} {
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

// Until repeats act until the watcher reports one, because the watcher starts at its own time.
func Until(t *testing.T, calls <-chan struct{}, what string, act func()) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		act()
		select {
		case <-calls:
			return
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not reported: %s", what)
		}
	}
}
