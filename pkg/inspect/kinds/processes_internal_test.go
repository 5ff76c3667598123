package kinds

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

func TestProcessOfTwoPodsIsForeign(t *testing.T) {
	scan := &hostscan.Scan{Processes: func() (hostscan.ProcessTable, error) {
		return hostscan.ProcessTable{Pods: []hostscan.PodProcess{{UID: inspecttest.Dead,
			Conflict: "in cgroups of two pods"}}}, nil
	}}
	objects, err := listProcesses(t.Context(), scan)
	if err != nil || len(objects) != 1 || objects[0].Foreign == "" {
		t.Errorf("%+v, %v", objects, err)
	}
}

// A process whose main thread has ended is not dead while other threads of it live.
func TestProcessWithThreadsIsNotDead(t *testing.T) {
	for _, test := range []struct {
		stat    proc.Stat
		threads string
		dead    bool
	}{
		{proc.Stat{State: 'S', Threads: 4}, "", false}, {proc.Stat{State: 'Z', Threads: 1}, "", true},
		{proc.Stat{State: 'Z', Threads: 4}, "3", false}, {proc.Stat{State: 'X', Threads: 4}, "", true},
	} {
		o := processObject(hostscan.PodProcess{Stat: test.stat})
		if o.IsDead() != test.dead || o.Facts["threads"] != test.threads {
			t.Errorf("%+v: dead %v, %v", test.stat, o.IsDead(), o.Facts)
		}
	}
}

// A pod with more processes than the limit is unknown, and one process stands for all.
func TestPodOfManyProcesses(t *testing.T) {
	const hostile, ordinary = "00000000-0000-4000-8000-0000000000bb", "00000000-0000-4000-8000-0000000000cc"
	h := hosttest.Host(t, func(h *host.Host) { h.Paths.CgroupDriver = host.CgroupfsDriver })
	process := func(pid int, uid string) {
		dir := filepath.Join(h.Files.Root, "proc", strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		hosttest.Write(t, dir, "cgroup", "0::/kubepods/pod"+uid+"\n")
		hosttest.Write(t, dir, "stat", fmt.Sprintf("%d (a) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n",
			pid))
	}
	process(100, hostile)
	for more := range hostscan.MaxPodProcesses { // all the same; it is for the count
		if err := os.Symlink("100", filepath.Join(h.Files.Root, "proc", strconv.Itoa(101+more))); err != nil {
			t.Fatal(err)
		}
	}
	process(99, ordinary)
	process(90_000, ordinary)
	dir := filepath.Join(h.Files.Root, "proc/95000")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	hosttest.Write(t, dir, "cgroup", "0::/kubepods/pod"+ordinary+"\n")
	hosttest.Write(t, dir, "stat", "nonsense")
	if err := os.MkdirAll(filepath.Join(h.Files.Root, "proc/96000/cgroup"), 0o755); err != nil { // EISDIR
		t.Fatal(err)
	}
	objects, err := listProcesses(t.Context(), hostscan.New(t.Context(), h, hostscan.Deadline{}))
	if err != nil {
		t.Fatal(err)
	}
	doubts := map[string][]string{}
	for _, o := range objects {
		doubts[o.Pod.UID] = append(doubts[o.Pod.UID], o.ID+strings.SplitN(" "+o.Doubt, ":", 2)[0])
	}
	if got := doubts[hostile]; len(got) != 1 || !strings.Contains(got[0], "more than 4096 processes") {
		t.Errorf("the hostile pod: %q", got)
	}
	if got := doubts[""]; len(got) != 1 || got[0] != "96000 it could not be read" {
		t.Errorf("one that cannot be read: %q", got)
	}
	want := []string{"99 ", "90000 ", "95000 it could not be read"}
	if got := doubts[ordinary]; !slices.Equal(got, want) {
		t.Errorf("the other pod: %q, want %q", got, want)
	}
}

// A kubelet that does not run shows no cgroupRoot: the processes of our own pods may be those in a tree that looks like
// another kubelet's. They are unknown then, and foreign only if our tree is known.
func TestTreeOfAKubeletThatDoesNotRun(t *testing.T) {
	down := func() (host.Process, error) { return host.Process{}, errors.New("no kubelet runs") }
	for name, test := range map[string]struct {
		root    string
		kubelet func() (host.Process, error)
		unknown bool
	}{
		"it runs":                         {"/", func() (host.Process, error) { return host.Process{PID: 7}, nil }, false},
		"it is down, and no path is set":  {"/", down, true},
		"it is down, and the path is set": {"/lab", down, false},
	} {
		scan := &hostscan.Scan{Host: hosttest.Host(t), Kubelet: test.kubelet,
			Processes: func() (hostscan.ProcessTable, error) {
				return hostscan.ProcessTable{Nested: []hostscan.PodProcess{{Cgroup: "/lab2/kubepods/podx"}}}, nil
			}}
		scan.Host.Paths.CgroupRoot = test.root
		objects, err := listProcesses(t.Context(), scan)
		if err != nil || len(objects) != 1 {
			t.Fatal(objects, err)
		}
		if o := objects[0]; (o.Doubt != "") != test.unknown || (o.Foreign != "") == test.unknown {
			t.Errorf("%s: foreign %q, in doubt %q", name, o.Foreign, o.Doubt)
		}
	}
}
