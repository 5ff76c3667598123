package probe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/test/need"
)

func statfsOf(paths ...string) []probe.ProbeRequest {
	var requests []probe.ProbeRequest
	for _, path := range paths {
		requests = append(requests, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: path})
	}
	return requests
}

func TestProbeBatchAnswers(t *testing.T) {
	odd := filepath.Join(t.TempDir(), "not UTF-8 \xff\n")
	if err := os.Mkdir(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	requests := slices.Concat(statfsOf("/", odd, "/nonexistent"), []probe.ProbeRequest{{Op: "format", Path: "/"}},
		statfsOf(slices.Repeat([]string{"/proc"}, 100)...))
	results := probe.NewProber().All(t.Context(), time.Minute, requests)
	if len(results) != len(requests) {
		t.Fatalf("%d results of %d", len(results), len(requests))
	}
	root := results[0]
	if root.Err != nil || root.Answer.TotalBytes == 0 || root.Answer.RootBytes < root.Answer.FreeBytes ||
		root.Answer.Inodes < root.Answer.FreeInodes {
		t.Errorf("root: %+v", root)
	}
	if results[1].Err != nil || results[1].Answer.Errno != 0 || results[2].Answer.Errno == 0 {
		t.Errorf("%+v", results[1:3])
	}
	if err := results[3].Err; err == nil || !strings.Contains(err.Error(), `unknown probe "format"`) {
		t.Error(err)
	}
	for i, r := range results[4:] {
		if r.Err != nil || r.Answer.Type != 0x9fa0 {
			t.Errorf("proc %d: %+v", i, r)
		}
	}
}

// A hanging path costs one process for all requests, and delays the others by no more than the patience.
func TestProbeBatchHangs(t *testing.T) {
	need.Root(t, "mounts a FUSE filesystem")
	prober := probe.NewProber()
	var ended <-chan struct{}
	t.Run("hangs", func(t *testing.T) {
		dir := hosttest.HangingFUSE(t)
		paths := slices.Concat([]string{"/"}, slices.Repeat([]string{dir}, 17), slices.Repeat([]string{"/proc"}, 64))
		results := prober.All(t.Context(), 2*time.Second, statfsOf(paths...))
		if results[0].Err != nil || results[0].Ended != nil {
			t.Errorf("root: %+v", results[0])
		}
		for _, r := range results[1:17] {
			if !errors.Is(r.Err, probe.ErrHung) || r.Ended == nil {
				t.Errorf("%+v", r)
			}
		}
		// too many in one child; the last would go to a second child
		for _, r := range []probe.ProbeResult{results[17], results[81]} {
			if !errors.Is(r.Err, probe.ErrTooManyAbandoned) {
				t.Errorf("%+v", r)
			}
		}
		if got := probeChildren(t); len(got) != 1 {
			t.Errorf("probe children: %v, want 1", got)
		}
		ended = results[1].Ended
		if answer, err := prober.Do(t.Context(), statfsOf("/")[0]); err != nil {
			t.Errorf("%+v, %v", answer, err)
		}
		select {
		case <-ended:
			t.Error("ended while it hangs")
		default:
		}
	}) // the connection is aborted here
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Errorf("not ended: %v", probeChildren(t))
	}
}

// When the caller runs out of time, answers received until then still count.
func TestProbeBatchOutOfTime(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for the one that answers to be started
	defer cancel()
	results := probe.NewProber().All(ctx, time.Minute, statfsOf("/", dir))
	if results[0].Err != nil || !errors.Is(results[1].Err, context.DeadlineExceeded) ||
		errors.Is(results[1].Err, probe.ErrHung) {
		t.Errorf("%+v", results)
	}
}

// If there is only Do, as in other packages' tests, All behaves the same.
func TestProbeAllOfDo(t *testing.T) {
	prober := probe.Prober{Do: func(ctx context.Context, r probe.ProbeRequest) (probe.ProbeAnswer, error) {
		if r.Path == "/hung" {
			<-ctx.Done()
			return probe.ProbeAnswer{}, fmt.Errorf("probe: %w", ctx.Err())
		}
		return probe.ProbeAnswer{Type: 1}, nil
	}}
	results := prober.All(t.Context(), 20*time.Millisecond, statfsOf("/hung", "/"))
	if !errors.Is(results[0].Err, probe.ErrHung) || results[1].Answer.Type != 1 {
		t.Errorf("%+v", results)
	}
	if results := (probe.Prober{}).All(t.Context(), time.Second, statfsOf("/")); !errors.Is(results[0].Err,
		hosterr.ErrNotConfigured) {
		t.Errorf("%+v", results)
	}
}

// BenchmarkProbeBatch measures a probe of 64 filesystems; BenchmarkProbe one.
func BenchmarkProbeBatch(b *testing.B) {
	prober, requests := probe.NewProber(), statfsOf(slices.Repeat([]string{"/"}, 64)...)
	for b.Loop() {
		for _, r := range prober.All(b.Context(), time.Second, requests) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
}
