package mutatetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// engines are the clients of a real containerd that also has containers of other engines.
type engines struct {
	*Bystanders
	containerd *Containerd
	api        *grpc.ClientConn
}

// Engines runs containers in a real containerd that CRI does not know, and compares them when the test ends: one of
// Docker's, some started by hand, and that of a starting pod.
func (b *Bystanders) Engines(c *Containerd) {
	n := b.node
	n.t.Helper()
	api, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { api.Close() })
	e := engines{Bystanders: b, containerd: c, api: api}
	for _, parent := range []string{"moby", "nerdctl", "ctr"} {
		n.cgroupsAt(parent)
	}
	e.run("moby", Hex(n.t, 64), "moby", "com.docker/engine.bundle.path=/var/run/docker/containerd")
	e.run("default", Hex(n.t, 64), "nerdctl", podLabels("container", UID(n.t))...) // with the labels of a deleted pod
	e.run("k8s.io", "mine", "ctr")
	e.run("k8s.io", b.starting.id, "kubepods/besteffort/pod"+b.starting.uid, podLabels("sandbox", b.starting.uid)...)
	before := e.census()
	n.t.Cleanup(func() {
		for _, harm := range before.Missing(e.census(), n.Dir) {
			n.t.Errorf("another engine's container was harmed: %s", harm)
		}
	})
}

func podLabels(kind, uid string) []string {
	return []string{"io.cri-containerd.kind=" + kind, "io.kubernetes.pod.uid=" + uid,
		"io.kubernetes.pod.namespace=default"}
}

// run starts a container with a lease of its name. Its cgroup is below parent in the node's corner.
func (e engines) run(namespace, id, parent string, labels ...string) {
	n, c := e.node, e.containerd
	n.t.Helper()
	if namespace != "k8s.io" { // which already has the image
		c.Ctr(namespace, "image", "import", filepath.Join(c.Dir, "image.tar"))
	}
	run := []string{"run", "-d", "--null-io", "--runc-root", filepath.Join(c.Dir, "runc"),
		"--cgroup", filepath.Join(n.Host.Paths.CgroupRoot, parent, Hex(n.t, 64))}
	for _, label := range labels {
		run = append(run, "--label", label)
	}
	n.t.Cleanup(func() {
		if _, err := c.ctr(namespace, "task", "rm", "-f", id); err != nil && !n.t.Failed() {
			n.t.Error(err)
		}
	})
	c.Ctr(namespace, append(run, Image, id)...)
	if _, err := leases.NewLeasesClient(e.api).Create(e.in(namespace), &leases.CreateRequest{ID: id}); err != nil {
		n.t.Fatal(err)
	}
}

// in returns a context for calls in a namespace, also during clean-up.
func (e engines) in(namespace string) context.Context {
	return metadata.AppendToOutgoingContext(context.WithoutCancel(e.node.t.Context()), "containerd-namespace",
		namespace)
}

// census lists containerd's objects in the namespaces of other engines, and those in k8s.io unknown to CRI.
func (e engines) census() Census {
	e.node.t.Helper()
	c := Census{}
	for _, namespace := range []string{"moby", "default", "k8s.io"} {
		if err := e.count(c, namespace); err != nil {
			e.node.t.Errorf("containers of namespace %s: %v", namespace, err)
		}
	}
	return c
}

func (e engines) count(c Census, namespace string) error {
	ctx := e.in(namespace)
	all, err := containers.NewContainersClient(e.api).List(ctx, &containers.ListContainersRequest{})
	if err != nil {
		return err
	}
	for _, one := range all.GetContainers() {
		if namespace == "k8s.io" && one.ID != "mine" && one.ID != e.starting.id {
			continue // a pod's
		}
		name := namespace + " " + one.ID
		c["container "+name] = one.String()
		if err := e.countOne(ctx, c, name, one); err != nil {
			return err
		}
	}
	held, err := leases.NewLeasesClient(e.api).List(ctx, &leases.ListRequest{})
	for _, lease := range held.GetLeases() {
		if namespace != "k8s.io" || lease.GetID() == "mine" || lease.GetID() == e.starting.id {
			c["lease "+namespace+" "+lease.GetID()] = lease.String()
		}
	}
	return err
}

// countOne adds the snapshot of a container, where it is mounted, its process and its shim.
func (e engines) countOne(ctx context.Context, c Census, name string, one *containers.Container) error {
	snapshot, err := snapshots.NewSnapshotsClient(e.api).Mounts(ctx,
		&snapshots.MountsRequest{Snapshotter: one.Snapshotter, Key: one.SnapshotKey})
	if err != nil {
		return err
	}
	c["snapshot "+name] = snapshot.String()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, one.ID) {
			c["root of "+name+" "+line] = ""
		}
	}
	task, err := tasks.NewTasksClient(e.api).Get(ctx, &tasks.GetRequest{ContainerID: one.ID})
	if err != nil {
		return err
	}
	pid := int(task.GetProcess().GetPid())
	for _, what := range []string{"task ", "shim "} {
		stat, err := e.node.Host.ProcStat(pid)
		if err != nil {
			return err
		}
		c[what+name] = fmt.Sprint(task.GetProcess().GetStatus(), " ", pid, " ", stat.StartTime)
		pid = stat.PPID
	}
	return nil
}
