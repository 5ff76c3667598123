package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/test/need"
)

// ripen makes enough passes for unknown objects to be leftovers in the last one.
func (n *node) ripen(t *testing.T, history History, i *Inspector) Report {
	t.Helper()
	var report Report
	for range 4 {
		report, history = i.Pass(t.Context(), history)
		n.After(settings().Grace)
	}
	return report
}

// chain makes a chain of cgroups with names of the maximum length, by descriptors, since no path reaches its end. It
// returns the descriptor of the last one.
func (n *node) chain(top string, length int) int {
	n.t.Helper()
	name := strings.Repeat("n", 250)
	fds := make([]int, 0, length)
	dir, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range length {
		if err == nil {
			fds = append(fds, dir)
			err = unix.Mkdirat(dir, name, 0o755)
		}
		if err == nil {
			dir, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		unix.Close(dir)
		for _, fd := range slices.Backward(fds) {
			if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil {
				n.t.Errorf("remove a cgroup: %v", err)
			}
			unix.Close(fd)
		}
	})
	return dir
}

// A pod that makes excessive cgroups, deep, many or with long names, is unknown. Leftovers of other pods are found
// nevertheless.
func TestHostilePodAffectsOnlyItself(t *testing.T) {
	const hostile, ordinary = "00000000-0000-4000-8000-0000000000bb", "00000000-0000-4000-8000-0000000000cc"
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	left := n.Cgroups(filepath.Join(n.Host.Paths.CgroupRoot, "kubepods/burstable/pod"+ordinary,
		strings.Repeat("c", 64)))
	tops := n.Cgroups(filepath.Join(n.Host.Paths.CgroupRoot, "kubepods/burstable/pod"+hostile))
	at := slices.IndexFunc(tops, func(dir string) bool { return strings.Contains(dir, "/pids/") })
	need.Has(t, at >= 0, "cgroup v1 with the pids controller")
	for i := range 1500 {
		dir := filepath.Join(tops[(at+1)%len(tops)], strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	last := n.chain(tops[at], 20) // more than PATH_MAX
	pid := n.Process()
	if err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/cgroup.procs", last), []byte(strconv.Itoa(pid)),
		0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the chain goes
		if err := os.WriteFile("/sys/fs/cgroup/pids/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644); err != nil {
			t.Error(err)
		}
	})
	report := n.ripen(t, History{}, n.inspector())
	noErrors(t, report)
	if got := ofPod(report, ordinary); !slices.Equal(got, []Verdict{Leftover}) {
		t.Errorf("the other pod: %v %s", got, whys(report, ordinary))
	}
	if got := objectsOf(report, ordinary); got != 2*len(left) {
		t.Errorf("%d objects of the other pod, want %d", got, 2*len(left))
	}
	if got := ofPod(report, hostile); !slices.Contains(got, Unknown) {
		t.Errorf("the hostile pod: %v", got)
	}
	if got := objectsOf(report, hostile); got > 100 {
		t.Errorf("the hostile pod has %d objects in the report", got)
	}
	// Some kernels return ENAMETOOLONG for its cgroups, Linux 6.18 truncates the path.
	is := slices.IndexFunc(report.Objects, func(o Assessment) bool {
		return o.Kind == Process && o.ID == strconv.Itoa(pid)
	})
	if is < 0 || report.Objects[is].Pod.UID != hostile && report.Objects[is].Verdict != Unknown {
		t.Errorf("its process: %d", is)
	}
}

func objectsOf(report Report, uid string) int {
	found := 0
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			found++
		}
	}
	return found
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
