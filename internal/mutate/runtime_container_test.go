package mutate_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// ghosts is a node with a real containerd and containers that CRI does not know.
type ghosts struct {
	*mutatetest.Node
	t      *testing.T
	ctd    *mutatetest.Containerd
	client *client.Client
}

func newGhosts(t *testing.T) *ghosts {
	t.Helper()
	c := mutatetest.StartContainerd(t)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket, p.ContainerdSocket = c.Socket, c.Socket })
	connection, err := cri.ConnectContainerd(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return &ghosts{n, t, c, connection}
}

// podCgroup makes the cgroup of a pod and returns its name.
func (g *ghosts) podCgroup(uid string) string {
	g.Cgroups(uid, "")
	return g.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
}

// of returns the identity of a container.
func (g *ghosts) of(id, uid string) mutate.RuntimeContainer {
	g.t.Helper()
	record, err := g.client.ContainerService().Get(namespaces.WithNamespace(g.t.Context(), cri.Namespace), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return mutate.RuntimeContainer{ID: id, CreatedAt: record.CreatedAt.UnixNano(), UID: uid}
}

// pid returns the process of a container's task, or 0 if it has none.
func (g *ghosts) pid(id string) int {
	g.t.Helper()
	answer, err := g.client.TaskService().Get(namespaces.WithNamespace(g.t.Context(), cri.Namespace),
		&tasksapi.GetRequest{ContainerID: id})
	if err != nil {
		return 0
	}
	return int(answer.GetProcess().GetPid())
}

// census returns all objects of containerd, in all namespaces.
func (g *ghosts) census() map[string]string {
	g.t.Helper()
	all := map[string]string{}
	for _, namespace := range []string{cri.Namespace, "moby"} {
		ctx := namespaces.WithNamespace(g.t.Context(), namespace)
		records, err := g.client.ContainerService().List(ctx)
		if err != nil {
			g.t.Fatal(err)
		}
		for _, r := range records {
			_, err := g.client.SnapshotService(r.Snapshotter).Stat(ctx, r.SnapshotKey)
			all[namespace+" "+r.ID] = r.CreatedAt.String() + " snapshot " + r.SnapshotKey + " missing: " +
				map[bool]string{true: "yes", false: "no"}[errdefs.IsNotFound(err)]
		}
		tasks, err := g.client.TaskService().List(ctx, &tasksapi.ListTasksRequest{})
		if err != nil {
			g.t.Fatal(err)
		}
		for _, task := range tasks.GetTasks() {
			all[namespace+" task "+task.GetID()] = task.String()
		}
	}
	return all
}

const shortGrace = 300 * time.Millisecond

// One container is deleted with its task and its snapshot. A container stays if CRI knows it, or if it has another
// identity, lacks CRI's labels or belongs to another engine.
func TestReleaseOfALostContainer(t *testing.T) {
	g := newGhosts(t)
	ctx, uid, other := t.Context(), mutatetest.UID(t), mutatetest.UID(t)
	parent := g.podCgroup(uid)
	lost, sibling := g.ctd.Ghost(uid, "container", parent), g.ctd.Ghost(other, "container", g.podCgroup(other))
	handmade := g.ctd.Ghost(uid, "", parent)
	stranger := g.ctd.Ghost(uid, "container", g.Host.Paths.CgroupRoot+"/kubepods/besteffort/pod"+other)
	listed := g.ctd.Sandbox(uid, parent, false)
	before := g.census()

	c := g.of(lost, uid)
	again, another, short := c, c, c
	again.CreatedAt++
	another.UID = other
	short.ID = lost[:12]
	whole := func(c mutate.RuntimeContainer) error {
		return errors.Join(g.Mutator.EndRuntimeTask(ctx, c, shortGrace), g.Mutator.DeleteRuntimeTask(ctx, c),
			g.Mutator.DeleteRuntimeContainer(ctx, c))
	}
	for name, try := range map[string]struct {
		container mutate.RuntimeContainer
		want      error
	}{
		"made again": {again, mutate.ErrChanged}, "another pod's": {another, mutate.ErrChanged},
		"an abbreviation": {short, nil}, "of no pod": {mutate.RuntimeContainer{ID: lost, CreatedAt: c.CreatedAt}, nil},
		"made by hand": {g.of(handmade, ""), nil}, "made by hand, with a pod": {g.of(handmade, uid), mutate.ErrChanged},
		"known to CRI": {g.of(listed.Id, uid), mutate.ErrBusy},
	} {
		if err := whole(try.container); err == nil || try.want != nil && !errors.Is(err, try.want) {
			t.Errorf("%s: %v, want %v", name, err, try.want)
		}
	}
	if err := g.Mutator.EndRuntimeTask(ctx, g.of(stranger, uid), shortGrace); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("in another pod's cgroup: %v", err)
	}
	if err := g.Mutator.DeleteRuntimeTask(ctx, c); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("a running task: %v", err)
	}
	// its root filesystem is mounted too, but the task must be noticed first
	if err := g.Mutator.DeleteRuntimeContainer(ctx, c); !errors.Is(err, mutate.ErrBusy) ||
		!strings.Contains(err.Error(), "has a task") {
		t.Errorf("a container with a task: %v", err)
	}
	if diff := cmp.Diff(before, g.census()); diff != "" {
		t.Fatalf("what must stay has changed: %s", diff)
	}
	pid := g.pid(lost)
	for range 2 { // the second time it is gone
		if err := whole(c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); err == nil {
		t.Errorf("process %d lives", pid)
	}
	if _, err := os.Lstat(g.ctd.Bundle(lost)); err == nil {
		t.Error("its bundle is still there")
	}
	want := maps.Clone(before)
	delete(want, cri.Namespace+" "+lost)
	delete(want, cri.Namespace+" task "+lost)
	if diff := cmp.Diff(want, g.census()); diff != "" {
		t.Error(diff)
	}
	if _, err := g.client.SnapshotService("overlayfs").Stat(namespaces.WithNamespace(ctx, cri.Namespace),
		lost); !errdefs.IsNotFound(err) {
		t.Errorf("its snapshot: %v", err)
	}
	if g.pid(sibling) == 0 {
		t.Error("the sibling has ended")
	}
}

// A snapshot is not deleted while it is mounted: the mount would outlive it.
func TestLostContainerWithAMount(t *testing.T) {
	g := newGhosts(t)
	ctx, uid := t.Context(), mutatetest.UID(t)
	id := g.ctd.Ghost(uid, "container", g.podCgroup(uid), "/busybox", "true")
	c := g.of(id, uid)
	if err := errors.Join(g.Mutator.EndRuntimeTask(ctx, c, shortGrace), g.Mutator.DeleteRuntimeTask(ctx, c)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{id, "." + id} { // containerd's name while it removes one
		rootfs := filepath.Join(g.ctd.Bundle(name), "rootfs")
		g.Mkdir(rootfs)
		g.Mount("tmpfs", rootfs, "tmpfs", 0)
		before := g.census()
		if err := g.Mutator.DeleteRuntimeContainer(ctx, c); !errors.Is(err, mutate.ErrBusy) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, g.census()); diff != "" {
			t.Error(diff)
		}
		if err := unix.Unmount(rootfs, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Mutator.DeleteRuntimeContainer(ctx, c); err != nil {
		t.Error(err)
	}
}

// A task that ends on SIGTERM is not killed.
func TestTaskHasItsGrace(t *testing.T) {
	g := newGhosts(t)
	uid := mutatetest.UID(t)
	mark := "/mark"
	id := g.ctd.Ghost(uid, "container", g.podCgroup(uid), "/busybox", "sh", "-c",
		"trap '/busybox sleep 1; echo done >"+mark+"; exit 0' TERM; echo up >/up; while :; do /busybox sleep 0.1; done")
	rootfs := filepath.Join(g.ctd.Bundle(id), "rootfs")
	mutatetest.Await(t, func() bool { _, err := os.Stat(rootfs + "/up"); return err == nil })
	if err := g.Mutator.EndRuntimeTask(t.Context(), g.of(id, uid), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(rootfs + mark); err != nil || !strings.HasPrefix(string(got), "done") {
		t.Errorf("it was killed before its grace was over: %v", err)
	}
}
