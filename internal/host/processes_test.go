package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
)

func TestProcCgroups(t *testing.T) {
	h := &host.Host{Files: host.Files{Root: t.TempDir()}}
	write := func(pid, text string) {
		dir := filepath.Join(h.Files.Root, "proc", pid)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/cgroup", []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("7", "5:memory:/kubepods/pod1\n2:cpu,cpuacct:/a:b:c\n1:name=systemd:/x\n0::/../y (deleted)\n")
	write("8", "5:memory\n")
	got, err := h.ProcCgroups(7)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory": "/kubepods/pod1", "cpu": "/a:b:c", "cpuacct": "/a:b:c", "name=systemd": "/x",
		"": "/../y (deleted)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for pid, want := range map[int]error{8: nil, 9: fs.ErrNotExist} {
		if got, err := h.ProcCgroups(pid); err == nil || got != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%d: %v, %v", pid, got, err)
		}
	}
}

// In cgroup v1 an exiting main thread is in the root: the cgroups are those of another thread.
func TestProcCgroupsOfThreads(t *testing.T) {
	const living, left, v2 = "5:memory:/kubepods/pod1\n1:name=systemd:/\n0::/\n", "5:memory:/\n1:name=systemd:/\n0::/\n", "0::/kubepods/pod2\n"
	const runs, exits = 0x400000, 0x400004
	for name, test := range map[string]struct {
		cgroups [3]string // of the threads 7, 8 and 9
		flags   [3]int
		threads int
		want    string // of memory
	}{
		"ended":                 {[3]string{left, living, living}, [3]int{exits, runs, runs}, 3, "/kubepods/pod1"},
		"the next exits, too":   {[3]string{left, left, living}, [3]int{exits, exits, runs}, 3, "/kubepods/pod1"},
		"all exit":              {[3]string{left, left, left}, [3]int{exits, exits, exits}, 3, "/"},
		"in the root":           {[3]string{left, living, living}, [3]int{runs, runs, runs}, 3, "/"},
		"its thread in it":      {[3]string{left, left, living}, [3]int{exits, runs, runs}, 3, "/"},
		"without other threads": {[3]string{left, living, living}, [3]int{exits, runs, runs}, 1, "/"},
		"lives":                 {[3]string{living, left, left}, [3]int{runs, runs, runs}, 3, "/kubepods/pod1"},
		"v2":                    {[3]string{v2, living, living}, [3]int{exits, runs, runs}, 3, ""},
	} {
		h := &host.Host{Files: host.Files{Root: t.TempDir()}}
		for i := range 3 {
			id := 7 + i
			stat := fmt.Sprintf("%d (x) R 1 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 %d 0 77 0 0\n", id, test.flags[i], test.threads)
			hosttest.WriteHostFile(t, h, fmt.Sprintf("proc/%d/cgroup", id), test.cgroups[i])
			hosttest.WriteHostFile(t, h, fmt.Sprintf("proc/%d/stat", id), stat)
			hosttest.WriteHostFile(t, h, fmt.Sprintf("proc/7/task/%d/stat", id), stat)
		}
		if got, err := h.ProcCgroups(7); err != nil || got["memory"] != test.want {
			t.Errorf("%s: %v, %v, want %q", name, got, err, test.want)
		}
	}
}

// The kernel shows the cgroups of a real process without its main thread in this way, too.
func TestProcCgroupsWithoutMain(t *testing.T) {
	h := &host.Host{}
	want, err := h.OwnCgroups()
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.ProcCgroups(thread.WithoutMain(t, nil))
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestProcArgsWithoutMain(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args, err := (&host.Host{}).ProcArgs(thread.WithoutMain(t, nil))
	if diff := cmp.Diff([]string{program}, args); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestOwnProcess(t *testing.T) {
	h, self := &host.Host{}, os.Getpid()
	pids, err := h.PIDs()
	if err != nil || !slices.Contains(pids, self) {
		t.Errorf("PIDs() = %v, %v", pids, err)
	}
	stat, err := h.ProcStat(self)
	if err != nil || stat.PID != self || stat.PPID != os.Getppid() || stat.StartTime == 0 {
		t.Errorf("ProcStat = %+v, %v", stat, err)
	}
	if task, err := h.TaskStat(self, self); err != nil || task.StartTime != stat.StartTime {
		t.Errorf("TaskStat = %+v, %v", task, err)
	}
	if tids, err := h.TIDs(self); err != nil || !slices.Contains(tids, self) {
		t.Errorf("TIDs = %v, %v", tids, err)
	}
	args, err := h.ProcArgs(self)
	if diff := cmp.Diff(os.Args, args); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if cgroups, err := h.ProcCgroups(self); err != nil || len(cgroups) == 0 {
		t.Errorf("ProcCgroups = %v, %v", cgroups, err)
	}
}

func TestNow(t *testing.T) {
	a, b := host.Now(), host.NewClock()()
	if a.Boot == "" || a.Boot != b.Boot || b.Since(a) < 0 || b.Since(a) > time.Minute || a.SinceBoot < time.Second {
		t.Errorf("Now() = %+v, %+v", a, b)
	}
}
