package listers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/test/need"
)

// fuse mounts a FUSE filesystem whose only server is a process in the given cgroups. It returns a function that ends
// the server.
func (n *node) fuse(dir string, cgroups ...string) (end func()) {
	n.t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	need.Kernel(n.t, "/dev/fuse", err)
	defer device.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("test", dir, "fuse.test", 0, options); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	process, err := os.StartProcess("/bin/sleep", []string{"sleep", "100000"},
		&os.ProcAttr{Files: []*os.File{nil, nil, nil, device}})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, cgroup := range cgroups {
		if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(fmt.Sprint(process.Pid)), 0o644); err != nil {
			n.t.Logf("%s: %v", cgroup, err) // cpuset wants to be configured first
		}
	}
	ended := false
	end = func() {
		if !ended {
			_ = process.Signal(syscall.SIGKILL)
			_, _ = process.Wait()
		}
		ended = true
	}
	n.t.Cleanup(end)
	return end
}

// A mount that a pod made outside of kubelet's directory is a leftover once the pod is gone, if it shows the pod's
// directory, or was seen to be served by the pod: also by an agent that was started later. Others are not.
func TestHostMounts(t *testing.T) {
	n := newNode(t)
	outside := t.TempDir()
	point := func(name string) string { return n.Mkdir(outside, name) }
	n.Add(dead, "maker")
	made := n.PodDir(dead, "volumes/kubernetes.io~empty-dir/data")
	n.Mount(made, point("bind"), "", unix.MS_BIND)
	n.Mount(n.PodDir(living, "volumes/kubernetes.io~empty-dir/data"), point("bind of the living"), "", unix.MS_BIND)
	n.Mount(filepath.Join(n.Host.Paths.KubeletRoot, "pods"), point("bind of all"), "", unix.MS_BIND)
	n.Mount("tmpfs", point("tmpfs"), "tmpfs", 0)
	n.Mount(n.Mkdir(outside, "tmpfs", dead, "volumes"), point("bind of another's"), "", unix.MS_BIND) // only its name is the pod's
	cgroups := n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + dead)
	endMade := n.fuse(point("fuse"), cgroups...)
	n.fuse(point("fuse of the living"), n.Cgroups(n.Host.Paths.CgroupRoot+"/kubepods/pod"+living)...)
	endHost := n.fuse(point("fuse of the host"))
	endPeer := n.fuse(n.PodDir(dead, "volumes/kubernetes.io~empty-dir/fuse"), cgroups...) // another kind

	mounts := func(report inspect.Report) map[string]inspect.Verdict {
		got := map[string]inspect.Verdict{}
		for _, o := range report.Objects {
			if o.Kind == inspect.HostMount && strings.HasPrefix(o.ID, outside) {
				got[filepath.Base(o.Facts["point"])] = o.Verdict
			}
		}
		for _, o := range inspect.Releasable(report).Objects {
			if o.Kind == inspect.HostMount {
				t.Errorf("%s would be released", o.ID)
			}
		}
		return got
	}
	want := map[string]inspect.Verdict{"bind": inspect.Live, "bind of the living": inspect.Live, "fuse": inspect.Live,
		"fuse of the living": inspect.Live, "fuse of the host": inspect.Foreign}
	i := n.inspector()
	report, history := passes(t, n, i, inspect.History{}, 2, time.Minute)
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Error("all live", diff)
	}
	endMade()
	endHost()
	endPeer()
	n.Remove(dead)
	report, history = passes(t, n, i, history, 2, time.Minute)
	want["bind"], want["fuse"] = inspect.Candidate, inspect.Candidate
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Error("the pod is gone", diff)
	}
	report, _ = passes(t, n, n.inspector(), history, 4, 5*time.Minute) // the agent was started again
	want["bind"], want["fuse"] = inspect.Leftover, inspect.Leftover
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Errorf("proven: %s\n%s", diff, whys(report, dead))
	}
}

// A FUSE filesystem without a server may be anyone's: nothing names a pod.
func TestDeadFUSEIsNobodys(t *testing.T) {
	n := newNode(t)
	dir := n.Mkdir(t.TempDir(), "fuse")
	n.fuse(dir)()
	report := n.ripen(t, inspect.History{}, n.inspector())
	noErrors(t, report)
	if o := one(t, report, inspect.HostMount, dir); o.Verdict != inspect.Foreign || o.Foreign != inspect.CreatorEnded {
		t.Errorf("%s: %s", o.Verdict, o.Why)
	}
}

// Before Linux 6.16 the kernel does not show whose connection a process serves. There only a fresh mount is a pod's, and
// only if no other process has /dev/fuse open. Above it does, and other processes do not matter.
func TestServerOfFUSE(t *testing.T) {
	const shown, other, untold = "fuse_connection:\t46\n", "fuse_connection:\t47\n", "pos:\t0\n"
	for name, test := range map[string]struct {
		all    []serving
		mature bool
		want   string
	}{
		"its connection":                   {all: []serving{{inspecttest.Dead, shown}}, want: inspecttest.Dead},
		"its connection, of an old mount":  {all: []serving{{inspecttest.Dead, shown}, {"", shown}}, mature: true, want: inspecttest.Dead},
		"another connection":               {all: []serving{{inspecttest.Dead, other}}},
		"two pods serve it":                {all: []serving{{inspecttest.Dead, shown}, {inspecttest.Living, shown}}},
		"the host serves it":               {all: []serving{{"", shown}}},
		"old kernel":                       {all: []serving{{inspecttest.Dead, untold}, {inspecttest.Dead, untold}}, want: inspecttest.Dead},
		"old kernel, old mount":            {all: []serving{{inspecttest.Dead, untold}}, mature: true},
		"old kernel, the host may":         {all: []serving{{inspecttest.Dead, untold}, {"", untold}}},
		"old kernel, two pods may":         {all: []serving{{inspecttest.Dead, untold}, {inspecttest.Living, untold}}},
		"old kernel, no process may serve": {all: []serving{{inspecttest.Dead, ""}}},
	} {
		scan := scanOf(t, test.all)
		if got, err := findServer(t.Context(), scan, 46, !test.mature); got != test.want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// After the pod of a FUSE filesystem has ended, another server may have made a new one on the same point, with the same
// numbers.
func TestNextServerOfFUSE(t *testing.T) {
	for name, test := range map[string]struct {
		all                  []serving
		broken               error
		uid, foreign, doubts string
	}{
		"the pod has other processes": {all: []serving{{inspecttest.Dead, ""}}, uid: inspecttest.Dead},
		"none serves it":              {all: []serving{{inspecttest.Living, ""}}, uid: inspecttest.Dead},
		"another pod serves it":       {all: []serving{{inspecttest.Living, "fuse_connection:\t46\n"}}, uid: inspecttest.Living},
		"the host serves it":          {all: []serving{{"", "fuse_connection:\t46\n"}}, uid: inspecttest.Dead, foreign: "process 10, which is of no pod"},
		"not known":                   {broken: errors.New("/proc is away"), uid: inspecttest.Dead, doubts: "/proc is away"},
	} {
		scan, s := scanOf(t, test.all), server{uid: inspecttest.Dead, passes: maxPasses}
		if test.broken != nil {
			scan.Processes = func() (hostscan.ProcessTable, error) { return hostscan.ProcessTable{}, test.broken }
		}
		foreign, doubt := s.update(t.Context(), scan, 46)
		if s.uid != test.uid || !strings.Contains(foreign, test.foreign) || (foreign == "") != (test.foreign == "") ||
			!strings.Contains(doubt, test.doubts) || (doubt == "") != (test.doubts == "") {
			t.Errorf("%s: %q, %q, %q", name, s.uid, foreign, doubt)
		}
	}
}

// serving is a process with one open file: /dev/fuse, if the kernel tells something about it.
type serving struct{ uid, info string }

// scanOf makes a node with these processes, whose PIDs begin with 10.
func scanOf(t *testing.T, all []serving) *hostscan.Scan {
	t.Helper()
	scan := inspecttest.MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
	table := hostscan.ProcessTable{Count: map[string]int{}}
	for i, p := range all {
		dir := fmt.Sprintf("proc/%d/task/%[1]d", 10+i)
		hosttest.Write(t, scan.Host.Files.Root, dir+"/fdinfo/3", p.info)
		files := scan.Host.Files.Path("/" + dir + "/fd")
		if err := os.MkdirAll(files, 0o755); err != nil {
			t.Fatal(err)
		}
		target := map[bool]string{true: "/dev/fuse", false: "/dev/null"}[p.info != ""]
		if err := os.Symlink(target, files+"/3"); err != nil {
			t.Fatal(err)
		}
		if p.uid != "" {
			table.Pods = append(table.Pods, hostscan.PodProcess{Stat: proc.Stat{PID: 10 + i}, UID: p.uid})
			table.Count[p.uid]++
		}
	}
	scan.Processes = func() (hostscan.ProcessTable, error) { return table, nil }
	return scan
}
