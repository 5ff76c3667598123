package probe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestProbeAnswers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	prober := probe.NewProber()
	for path, errno := range map[string]syscall.Errno{"/": 0, "/proc": 0, file: 0, file + "x": syscall.ENOENT} {
		answer, err := prober.Do(t.Context(), probe.ProbeRequest{Op: probe.ProbeStatfs, Path: path})
		if err != nil || syscall.Errno(answer.Errno) != errno {
			t.Errorf("probe of %s = %+v, %v; want errno %d", path, answer, err, errno)
		}
		if path == "/" && answer.TotalBytes == 0 {
			t.Errorf("no size in %+v", answer)
		}
	}
	_, err := prober.Do(t.Context(), probe.ProbeRequest{Op: "format", Path: "/"})
	if err == nil || !strings.Contains(err.Error(), `unknown probe "format"`) {
		t.Errorf("unknown probe: %v", err)
	}
}

// A hanging filesystem costs at most three processes for as long as it hangs, and none afterwards.
func TestProbeOfHungFilesystem(t *testing.T) {
	need.Root(t, "mounts a FUSE filesystem")
	prober := probe.NewProber()
	hang := probe.ProbeRequest{Op: probe.ProbeStatfs}
	t.Run("hangs", func(t *testing.T) {
		hang.Path = hosttest.HangingFUSE(t)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := prober.Do(ctx, hang); err == nil {
					t.Error("a hung filesystem answered")
				}
			})
		}
		all.Wait()
		if got := probeChildren(t); len(got) != 3 {
			t.Errorf("probe children: %v, want 3", got)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := prober.Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: "/"})
		if !errors.Is(err, probe.ErrTooManyAbandoned) || time.Since(begin) > 30*time.Second {
			t.Errorf("after %v: %v, want ErrTooManyAbandoned at once", time.Since(begin), err)
		}
	}) // the connection is aborted here
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(probeChildren(t)) > 0 && ctx.Err() == nil {
		tick(ctx)
	}
	for ; ctx.Err() == nil; tick(ctx) {
		_, err := prober.Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: "/"})
		if err == nil {
			return
		}
	}
	t.Errorf("children left: %v, or the prober did not recover", probeChildren(t))
}

// probeChildren lists our children, zombies included.
func probeChildren(t *testing.T) []string {
	t.Helper()
	h := &host.Host{}
	pids, err := h.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, pid := range pids {
		if stat, err := h.ProcStat(pid); err == nil && stat.PPID == os.Getpid() {
			children = append(children, fmt.Sprintf("%d %s %c", pid, stat.Comm, stat.State))
		}
	}
	return children
}

// tick waits for a change in the kernel that sends no notification.
func tick(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

func BenchmarkProbe(b *testing.B) {
	prober := probe.NewProber()
	for b.Loop() {
		if _, err := prober.Do(b.Context(), probe.ProbeRequest{Op: probe.ProbeStatfs, Path: "/"}); err != nil {
			b.Fatal(err)
		}
	}
}
