package release

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// ghostWorld is a world with a real containerd, in which objects below CRI are inspected too.
func ghostWorld(t *testing.T, optIn ...object.Kind) (*world, *mutatetest.Containerd) {
	t.Helper()
	w, c := runtimeWorld(t)
	w.Host.Paths.ContainerdState, w.Host.Paths.ContainerdRoot = filepath.Join(c.Dir, "state"), filepath.Join(c.Dir, "root")
	w.kinds, w.settings.Kinds = nil, map[object.Kind]Mode{}
	for _, kind := range optIn {
		w.settings.Kinds[kind] = On
	}
	return w, c
}

func (w *world) podCgroup(uid string) string {
	w.t.Helper()
	w.Cgroups(uid, "")
	return w.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
}

// processOf returns the process of a container's task and its shim.
func (w *world) processOf(id string) (task, shim int) {
	w.t.Helper()
	all, err := w.Host.Containerd.Tasks(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range all {
		if one.GetID() == id {
			stat, err := w.Host.ProcStat(int(one.GetPid()))
			if err != nil {
				w.t.Fatal(err)
			}
			return stat.PID, stat.PPID
		}
	}
	w.t.Fatalf("no task %s", id)
	return 0, 0
}

// proven inspects until each object of a kind of a pod is a leftover. Related objects stay candidates meanwhile.
func (w *world) proven(uid string, kind object.Kind) {
	w.t.Helper()
	mutatetest.Await(w.t, func() bool {
		n := 0
		for _, o := range w.inspect().Objects {
			if o.Pod.UID == uid && o.Kind == kind && o.Verdict != object.Leftover {
				return false
			}
			if o.Pod.UID == uid && o.Kind == kind {
				n++
			}
		}
		return n > 0
	})
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

// Containers that CRI lost go with their tasks, shims, bundles and snapshots: the sandbox after its containers. Those
// of a living pod, lost or not, and of other engines stay. None goes before the configuration or a person permits it.
func TestReleaseLostContainers(t *testing.T) {
	w, c := ghostWorld(t)
	parentOfLiving := w.podCgroup(w.living) // before its children, so that it is removed after them
	w.sandboxed(c, w.living)
	kept := c.Ghost(w.living, "container", parentOfLiving)
	keptTask, keptShim := w.processOf(kept)
	dead := mutatetest.UID(t)
	parent := w.podCgroup(dead)
	ids := []string{c.Ghost(dead, "sandbox", parent), c.Ghost(dead, "container", parent)}
	w.proven(dead, object.ContainerdContainer)
	living := w.census(pod{uid: w.living, data: w.Mkdir(filepath.Join(w.Dir, "none"))})

	task, shim := w.processOf(ids[1])
	off := map[object.Kind]Mode{object.Process: DryRun, object.Cgroup: DryRun}
	w.settings.Kinds = off // they would go first as processes
	if outcome := w.release(); outcome.Acted() || !alive(task) || !alive(shim) {
		t.Fatalf("it was not opted in: %s", describe(outcome))
	}
	w.settings.Kinds = map[object.Kind]Mode{}
	w.settings.Attended = true
	outcome := w.release()
	if left := w.left(dead); len(left) > 0 || len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Fatalf("left: %q\n%s", left, describe(outcome))
	}
	for _, s := range outcome.Pods[0].Steps {
		if s.Kind == object.ContainerdContainer && s.Result != Released {
			t.Errorf("%s %s: %s", s.Kind, s.ID, s.Result)
		}
	}
	if alive(task) || alive(shim) {
		t.Error("a process of the dead pod lives")
	}
	for _, id := range ids {
		if _, err := os.Lstat(c.Bundle(id)); !os.IsNotExist(err) {
			t.Errorf("bundle of %s: %v", id, err)
		}
	}
	unchanged(t, "the living pod", living, w.census(pod{uid: w.living, data: filepath.Join(w.Dir, "none")}))
	if nowTask, nowShim := w.processOf(kept); nowTask != keptTask || nowShim != keptShim {
		t.Error("the lost container of the living pod is another one")
	}
}

// A crash between any two changes, then a new release.
func TestCrashInLostContainer(t *testing.T) {
	w, c := ghostWorld(t, object.ContainerdContainer)
	for _, point := range []string{"intent: containerd-container", "containerd-container: task ended",
		"containerd-container: task deleted", "done: containerd-container"} {
		dead := mutatetest.UID(t)
		c.Ghost(dead, "container", w.podCgroup(dead))
		w.proven(dead, object.ContainerdContainer)
		w.crashAt(point)
		outcome := w.release()
		if left := w.left(dead); len(left) > 0 {
			t.Fatalf("crash at %q: left %q\n%s", point, left, describe(outcome))
		}
	}
}

// crashAt makes a release crash at a point.
func (w *world) crashAt(point string) {
	w.t.Helper()
	crash := errors.New("crash")
	w.faultPoint = func(at string) error {
		if at == point {
			return crash
		}
		return nil
	}
	if _, err := w.runner().Release(w.t.Context(), w.inspect()); !errors.Is(err, crash) {
		w.t.Fatalf("at %q: %v", point, err)
	}
	w.faultPoint = nil
}

// A shim without a container in containerd goes after the processes below it, and containerd removes its bundle. A shim
// whose container containerd still has stays, even if the pod is dead.
func TestReleaseLostShim(t *testing.T) {
	w, c := ghostWorld(t, object.Shim)
	dead := mutatetest.UID(t)
	id := c.Ghost(dead, "container", w.podCgroup(dead))
	kept := c.Ghost(w.living, "container", w.podCgroup(w.living))
	keptTask, keptShim := w.processOf(kept)
	task, shim := w.processOf(id)
	api, err := cri.ConnectContainerd(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	if err := api.ContainerService().Delete(namespaces.WithNamespace(t.Context(), cri.Namespace), id); err != nil {
		t.Fatal(err)
	}
	w.proven(dead, object.Shim)
	outcome := w.release()
	want := []Result{Released}
	if got := results(outcome); cmp.Diff(want, got[object.Process]) != "" || cmp.Diff(want, got[object.Shim]) != "" {
		t.Error(describe(outcome))
	}
	if alive(task) || alive(shim) {
		t.Error(describe(outcome))
	}
	mutatetest.Await(t, func() bool { return len(w.left(dead)) == 0 }) // containerd collects the snapshot later
	if _, err := os.Lstat(c.Bundle(id)); !os.IsNotExist(err) {
		t.Errorf("its bundle: %v", err)
	}
	if nowTask, nowShim := w.processOf(kept); nowTask != keptTask || nowShim != keptShim {
		t.Error("the shim of the living pod is another one")
	}
}

// CNI's cached result was deleted, so DEL cannot be repeated: the address is freed nevertheless. Those of a living pod
// and of podman stay.
func TestReleaseAddressWithoutAttachment(t *testing.T) {
	hosttest.PrivateNetwork(t)
	w, _ := ghostWorld(t, object.IPAMLease)
	w.attachPod(w.living)
	before := w.networkCensus()
	dead := mutatetest.UID(t)
	_, attached := w.attachPod(dead)
	w.Host.Paths.CNIConfDir = w.Mkdir(filepath.Join(w.Dir, "net.d")) // identifies the pod network
	w.Write(filepath.Join(w.Host.Paths.CNIConfDir, "10-pods.conflist"), `{"name":"`+attached.Network+`"}`)
	w.inspect() // this pass has recorded its owner
	if err := os.Remove(attached.File); err != nil {
		t.Fatal(err)
	}
	outcome := w.release()
	want := map[object.Kind][]Result{object.Netns: {Released}, object.Link: {Vanished}, object.IPAMLease: {Released}}
	if diff := cmp.Diff(want, results(outcome)); diff != "" {
		t.Error(diff, describe(outcome))
	}
	after := w.networkCensus()
	for name := range after { // portmap's, removed only by its DEL: it is reported (port-mapping)
		if _, ok := before[name]; !ok && strings.Contains(name, "tables-save ") {
			delete(after, name)
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the node is not as it was: %s", diff)
	}
}

// The directory of a sandbox that containerd lost goes with its shared memory mount; that of a living pod stays.
func TestReleaseSandboxDirectory(t *testing.T) {
	w, c := ghostWorld(t, object.SandboxDirectory)
	w.Cgroups(w.living, "")
	w.sandboxed(c, w.living)
	sandboxes := filepath.Join(c.Dir, "state/io.containerd.grpc.v1.cri/sandboxes")
	dead, id := mutatetest.UID(t), mutatetest.Hex(t, 64)
	before := mutatetest.Snapshot(t, sandboxes)
	shm := w.Mkdir(filepath.Join(sandboxes, id, "shm"))
	w.Mount("shm", shm, "tmpfs", 0)
	w.Cgroups(dead, id) // names the pod
	w.proven(dead, object.SandboxDirectory)
	w.crashAt("sandbox-directory: unmounted")
	outcome := w.release()
	if got := results(outcome)[object.SandboxDirectory]; cmp.Diff([]Result{Released}, got) != "" {
		t.Error(describe(outcome))
	}
	unchanged(t, "the directory of the living pod", before, mutatetest.Snapshot(t, sandboxes))
}

// The bundle of a container that containerd lost during a removal goes with its root filesystem once its holders have
// ended; that of a living pod stays.
func TestReleaseLostBundle(t *testing.T) {
	w, c := ghostWorld(t, object.Rootfs)
	kept := c.Ghost(w.living, "container", w.podCgroup(w.living))
	keptTask, keptShim := w.processOf(kept)
	dead := mutatetest.UID(t)
	id := c.Ghost(dead, "container", w.podCgroup(dead))
	w.inspect() // this pass has recorded its owner
	bundle := c.Lose(id)
	held, err := os.Open(filepath.Join(bundle, "rootfs/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	w.proven(dead, object.Rootfs)
	outcome := w.release()
	if got := results(outcome)[object.Rootfs]; cmp.Diff([]Result{Failed}, got) != "" ||
		!strings.Contains(describe(outcome), "open-file") {
		t.Fatalf("while a file is open: %s", describe(outcome))
	}
	if _, err := os.Lstat(filepath.Join(bundle, "rootfs/busybox")); err != nil {
		t.Fatal(err)
	}
	held.Close()
	w.crashAt("rootfs: unmounted")
	w.proven(dead, object.Rootfs)
	outcome = w.release()
	if got := results(outcome)[object.Rootfs]; cmp.Diff([]Result{Released}, got) != "" {
		t.Error(describe(outcome))
	}
	if _, err := os.Lstat(bundle); !os.IsNotExist(err) {
		t.Error(err)
	}
	if nowTask, nowShim := w.processOf(kept); nowTask != keptTask || nowShim != keptShim {
		t.Error("the container of the living pod is another one")
	}
}
