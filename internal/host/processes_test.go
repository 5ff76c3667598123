package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
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
