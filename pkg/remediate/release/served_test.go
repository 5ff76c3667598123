package release

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

// serve makes a process of a pod the server of a FUSE filesystem, like a driver's node plugin: no other process holds
// its connection.
func (w *world) serve(uid, point string) mutate.Process {
	w.t.Helper()
	need.Kernel(w.t, "/dev/fuse", unix.Access("/dev/fuse", unix.R_OK))
	w.Mkdir(point)
	w.t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	return w.Shell(uid, w.Cgroups(uid, mutatetest.Hex(w.t, 64)), "exec 3<>/dev/fuse; mount -i -t fuse.test -o "+
		"fd=3,rootmode=40000,user_id=0,group_id=0 test "+point+" && echo ready; exec sleep 1000")
}

// The volumes of living pods are lost when the process that serves them ends, even if its pod was deleted by force.
func TestReleaseKeepsServersOfVolumes(t *testing.T) {
	w := newWorld(t)
	dead, own := mutatetest.UID(t), mutatetest.UID(t)
	server := w.serve(dead, w.PodDir(w.living, "volumes/kubernetes.io~csi/data/mount"))
	bystander := w.Shell(dead, w.Cgroups(dead, mutatetest.Hex(t, 64)), "echo ready; exec sleep 1000")
	selfish := w.serve(own, w.PodDir(own, "volumes/kubernetes.io~empty-dir/data"))

	info, err := os.ReadFile("/proc/" + strconv.Itoa(server.PID) + "/fdinfo/3")
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Contains(string(info), "fuse_connection:") // since Linux 6.16

	outcome := describe(w.release())
	for _, p := range []mutate.Process{server, bystander} {
		if ended, err := w.Mutator.Ended(p); ended || err != nil {
			t.Errorf("process %d ended: %v, %v", p.PID, ended, err)
		}
	}
	if ended, err := w.Mutator.Ended(selfish); ended != shown || err != nil {
		t.Errorf("a process that serves its own pod alone ended: %v, %v\n%s", ended, err, outcome)
	}
	for _, o := range w.inspect().Objects {
		if o.Pod.UID == dead && !strings.Contains(o.Why, w.living+"/volumes/kubernetes.io~csi/data/mount") {
			t.Errorf("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
	}

	if err := unix.Unmount(w.PodDir(w.living, "volumes/kubernetes.io~csi/data/mount"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	outcome = describe(w.release())
	if ended, err := w.Mutator.Ended(server); ended != shown || err != nil {
		t.Errorf("nothing is mounted from it any more; ended: %v, %v\n%s", ended, err, outcome)
	}
}

// If a person starts the runtime by hand in a debugging pod, the shims of later pods are in that pod's cgroup. Their
// containers would die with them.
func TestReleaseKeepsParentsOfOthers(t *testing.T) {
	w := newWorld(t)
	dead, other := mutatetest.UID(t), mutatetest.UID(t)
	living := w.Cgroups(w.living, mutatetest.Hex(t, 64))
	shim := w.Shell(dead, w.Cgroups(dead, mutatetest.Hex(t, 64)), "sleep 1000 & echo $! > "+w.Dir+"/child; echo ready; wait")
	child, err := os.ReadFile(w.Dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(child)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	for _, dir := range living {
		if err := os.WriteFile(dir+"/cgroup.procs", child, 0); err != nil {
			t.Fatal(err)
		}
	}
	daemon := w.Shell(other, w.Cgroups(other, mutatetest.Hex(t, 64)), "echo ready; exec sleep 1000")
	w.Host.Runtime.Process = func(context.Context) (host.Process, error) { return host.Process{PID: daemon.PID}, nil }

	outcome := describe(w.release())
	for what, p := range map[string]mutate.Process{"parent": shim, "runtime": daemon} {
		if ended, err := w.Mutator.Ended(p); ended || err != nil {
			t.Errorf("the %s ended: %v, %v\n%s", what, ended, err, outcome)
		}
	}
}
