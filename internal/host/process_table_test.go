package host_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The table is at most as old as the caller allows, and one scan serves all concurrent callers.
func TestProcessTable(t *testing.T) {
	up := time.Hour
	h := hosttest.Host(t, func(h *host.Host) {
		h.Processes = host.NewProcesses()
		h.Clock = func() finding.Timestamp { return finding.Timestamp{SinceBoot: up} }
	})
	hosttest.WriteStat(t, h, 200, "200 (b) D 1"+hosttest.StatTail)
	hosttest.WriteStat(t, h, 30, "30 (a) Z 1"+hosttest.StatTail)
	for _, other := range []string{"self", "sys", "12x", "99999999999999999999"} { // no processes
		if err := os.MkdirAll(filepath.Join(h.Files.Root, "proc", other), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(h.Files.Root, "proc/40"), 0o755); err != nil { // ended meanwhile
		t.Fatal(err)
	}
	scan := func(maxAge time.Duration) []proc.Stat {
		t.Helper()
		table, err := h.ProcessTable(t.Context(), maxAge)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	want := []proc.Stat{
		{PID: 30, PPID: 1, Comm: "a", State: 'Z', Threads: 1, StartTime: 339, Flags: 4194560, CPUTicks: 11},
		{PID: 200, PPID: 1, Comm: "b", State: 'D', Threads: 1, StartTime: 339, Flags: 4194560, CPUTicks: 11},
	}
	if diff := cmp.Diff(want, scan(0)); diff != "" {
		t.Error(diff)
	}
	hosttest.WriteStat(t, h, 200, "200 (c) S 1"+hosttest.StatTail)
	up += 20 * time.Second
	if diff := cmp.Diff(want, scan(30*time.Second)); diff != "" {
		t.Errorf("not the kept one: %s", diff)
	}
	if got := scan(10 * time.Second); got[1].Comm != "c" || got[1].State != 'S' || want[1].Comm != "b" {
		t.Errorf("not a new one: %+v", got)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { scan(time.Second) })
	}
	all.Wait()
}

func TestProcessTableErrors(t *testing.T) {
	h := hosttest.Host(t)
	if _, err := h.ProcessTable(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "/proc") {
		t.Errorf("no /proc: %v", err)
	}
	hosttest.WriteStat(t, h, 7, "7 (x")
	if table, err := h.ProcessTable(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "/proc/7/stat") {
		t.Errorf("malformed: %v, %v", table, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if table, err := h.ProcessTable(ctx, 0); err == nil {
		t.Errorf("too late: %v", table)
	}
}

func TestProcessTableOfThisMachine(t *testing.T) {
	h := &host.Host{Clock: host.Now, Processes: host.NewProcesses()}
	table, err := h.ProcessTable(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(table, func(s proc.Stat) bool { return s.PID == os.Getpid() })
	self, err := h.ProcStat(os.Getpid())
	if err != nil || i < 0 || table[i].StartTime != self.StartTime || table[i].Comm != self.Comm ||
		table[i].Threads < 2 {
		t.Errorf("%+v, want %+v, %v", table, self, err)
	}
}

func TestThreads(t *testing.T) {
	h, threads := &host.Host{}, 0
	err := h.Threads(t.Context(), []int{os.Getpid(), 1 << 30}, func(pid int, thread proc.Stat) {
		threads++
		if pid != os.Getpid() || thread.StartTime == 0 {
			t.Errorf("thread of %d: %+v", pid, thread)
		}
	})
	if err != nil || threads < 2 {
		t.Errorf("%d threads, %v", threads, err)
	}
}

// BenchmarkProcessTable measures the cost of each process.
func BenchmarkProcessTable(b *testing.B) {
	h := &host.Host{Clock: host.Now, Processes: host.NewProcesses()}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		table, err := h.ProcessTable(b.Context(), -1)
		if err != nil {
			b.Fatal(err)
		}
		n += len(table)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/process")
}
