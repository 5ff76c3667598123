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

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

// ripen makes enough passes for unknown objects to be leftovers in the last one.
func (n *node) ripen(t *testing.T, history object.History, i *Inspector) object.Report {
	t.Helper()
	var report object.Report
	for range 4 {
		report, history = i.Pass(t.Context(), history)
		n.After(inspecttest.Settings().Grace)
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
	report := n.ripen(t, object.History{}, n.inspector())
	inspecttest.NoErrors(t, report)
	if got := ofPod(report, ordinary); !slices.Equal(got, []object.Verdict{object.Leftover}) {
		t.Errorf("the other pod: %v %s", got, inspecttest.Whys(report, ordinary))
	}
	if got := objectsOf(report, ordinary); got != 2*len(left) {
		t.Errorf("%d objects of the other pod, want %d", got, 2*len(left))
	}
	if got := ofPod(report, hostile); !slices.Contains(got, object.Unknown) {
		t.Errorf("the hostile pod: %v", got)
	}
	if got := objectsOf(report, hostile); got > 100 {
		t.Errorf("the hostile pod has %d objects in the report", got)
	}
	// Some kernels return ENAMETOOLONG for its cgroups, Linux 6.18 truncates the path.
	is := slices.IndexFunc(report.Objects, func(o object.Assessment) bool {
		return o.Kind == object.Process && o.ID == strconv.Itoa(pid)
	})
	if is < 0 || report.Objects[is].Pod.UID != hostile && report.Objects[is].Verdict != object.Unknown {
		t.Errorf("its process: %d", is)
	}
}

func objectsOf(report object.Report, uid string) int {
	found := 0
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			found++
		}
	}
	return found
}
