package kinds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
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

	mounts := func(report object.Report) map[string]object.Verdict {
		got := map[string]object.Verdict{}
		for _, o := range report.Objects {
			if o.Kind == object.HostMount && strings.HasPrefix(o.ID, outside) {
				got[filepath.Base(o.Facts["point"])] = o.Verdict
			}
		}
		for _, o := range kinds.Releasable(report).Objects {
			if o.Kind == object.HostMount {
				t.Errorf("%s would be released", o.ID)
			}
		}
		return got
	}
	want := map[string]object.Verdict{"bind": object.Live, "bind of the living": object.Live, "fuse": object.Live,
		"fuse of the living": object.Live, "fuse of the host": object.Foreign}
	i := n.inspector()
	report, history := passes(t, n, i, object.History{}, 2, time.Minute)
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Error("all live", diff)
	}
	endMade()
	endHost()
	endPeer()
	n.Remove(dead)
	report, history = passes(t, n, i, history, 2, time.Minute)
	want["bind"], want["fuse"] = object.Candidate, object.Candidate
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Error("the pod is gone", diff)
	}
	report, _ = passes(t, n, n.inspector(), history, 4, 5*time.Minute) // the agent was started again
	want["bind"], want["fuse"] = object.Leftover, object.Leftover
	if diff := cmp.Diff(want, mounts(report)); diff != "" {
		t.Errorf("proven: %s\n%s", diff, inspecttest.Whys(report, dead))
	}
}

// A FUSE filesystem without a server may be anyone's: nothing names a pod.
func TestDeadFUSEIsNobodys(t *testing.T) {
	n := newNode(t)
	dir := n.Mkdir(t.TempDir(), "fuse")
	n.fuse(dir)()
	report := n.ripen(t, object.History{}, n.inspector())
	inspecttest.NoErrors(t, report)
	if o := one(t, report, object.HostMount, dir); o.Verdict != object.Foreign || o.Foreign != object.CreatorEnded {
		t.Errorf("%s: %s", o.Verdict, o.Why)
	}
}
