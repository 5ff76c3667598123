package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
)

const goneDriver = "gone.example.com"

// TestOtherLeftoversByKubeletsCredentials covers the kinds that TestSystemdLeftoversByKubeletsCredentials does not make
// and that any node can have. With only kubelet's own credentials the agent proves which objects belonged to a pod, and
// releases those that it may. For volumes it reports that it could not tell, because kubelet does not show it the
// volumes of its pods; for unowned objects it reports that they have no owner.
func TestOtherLeftoversByKubeletsCredentials(t *testing.T) {
	ofTheProcess(t, "a pod has a ServiceAccount")
	l := openLab(t)
	a := install(t, l, harness.Overrides{"paths": map[string]any{"kubeconfig": l.Paths.KubeletKubeconfig},
		"inspect": map[string]any{"massOrphaning": 100}})
	living := newBystanders(t, l)

	leased := newDeadPod(t, l, object.CNIAttachment, object.Netns, object.Link, object.Lease)
	leased.attach()
	leased.lease()
	d := newDeadPod(t, l, object.CNIAttachment, object.Netns, object.Link, object.PortMapping, object.SandboxDirectory,
		object.Snapshot, object.LogLink, object.DeviceAllocation)
	d.hostPort = 18_099
	d.attach()
	d.sandboxDirectories()
	d.snapshot()
	d.logs()
	d.checkpoint()
	others := []struct {
		kind    object.Kind
		id      string // part of it
		verdict object.Verdict
		why     string // part of it
	}{
		{object.PodLogs, "default_dead_" + d.uid, object.Candidate, "of 24h0m0s remaining"},
		{object.BlockDevice, d.loopDevice(), object.Unknown, "podresources do not show the volumes"},
		{object.StagedVolume, d.stagedVolume("of-the-dead", d.uid), object.Unknown, "podresources do not show the volumes"},
		{object.StagedVolume, d.stagedVolume("of-nobody", ""), object.Unknown, "podresources do not show the volumes"},
		{object.PluginSocket, deadSocket(t, filepath.Join(l.Paths.KubeletRoot, "plugins", goneDriver, "csi.sock")),
			object.Unknown, "podresources do not show the volumes"},
		{object.VolumeAttachment, d.attachedVolume(), object.Unknown, "podresources do not show the volumes"},
	}

	awaitLeftovers(t, a, leased, d)
	await(t, "the verdicts on what is not proven", func() (err error) {
		var report inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, want := range others {
			var found []string
			for _, o := range report.Objects {
				if o.Kind == want.kind && strings.Contains(o.ID, want.id) {
					found = append(found, fmt.Sprintf("%s: %s", o.Verdict, o.Why))
				}
			}
			if len(found) != 1 || !strings.HasPrefix(found[0], string(want.verdict)) || !strings.Contains(found[0], want.why) {
				err = errors.Join(err, fmt.Errorf("%s %s: %q", want.kind, want.id, found))
			}
		}
		return err
	})

	d.wants = []object.Kind{object.CNIAttachment, object.Netns, object.Link, object.PortMapping, object.Mount,
		object.PodDirectory, object.SandboxDirectory} // containerd and kubelet clean up the others
	awaitReleased(t, a, leased, d)
	for _, o := range others {
		if _, err := os.Lstat(o.id); strings.HasPrefix(o.id, "/") && err != nil {
			t.Errorf("%s: not proven, and it is gone: %v", o.kind, err)
		}
	}
	living.check(t)
}

// lease creates containerd's lease of the sandbox, like its CRI plugin.
func (d *deadPod) lease() {
	d.t.Helper()
	conn, err := grpc.NewClient("unix://"+d.lab.Paths.ContainerdSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	ctx := namespaces.WithNamespace(context.WithoutCancel(d.t.Context()), "k8s.io")
	client := leases.NewLeasesClient(conn)
	if _, err := client.Create(ctx, &leases.CreateRequest{ID: d.container}); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _, _ = client.Delete(ctx, &leases.DeleteRequest{ID: d.container}) }) // whether released or not
}

// snapshot creates one with the sandbox's ID.
func (d *deadPod) snapshot() {
	d.t.Helper()
	ctr := []string{"-a", d.lab.Paths.ContainerdSocket, "-n", "k8s.io", "snapshots"}
	command(d.t, d.lab.Paths.Ctr, append(ctr, "prepare", d.container)...)
	d.t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(d.t.Context()), d.lab.Paths.Ctr, append(ctr, "rm", d.container)...).Run()
	})
}

// sandboxDirectories creates those of containerd's CRI plugin.
func (d *deadPod) sandboxDirectories() {
	d.t.Helper()
	for _, root := range []string{d.lab.Paths.ContainerdRoot, d.lab.Paths.ContainerdState} {
		dir := filepath.Join(root, "io.containerd.grpc.v1.cri/sandboxes", d.container)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { os.RemoveAll(dir) })
	}
}

// logs creates a log directory that kubelet cannot remove, because there is a mount in it, and a link of another
// container whose log is gone.
func (d *deadPod) logs() {
	d.t.Helper()
	logs := d.lab.Paths.PodLogsDir
	dir := filepath.Join(logs, "default_dead_"+d.uid, "main")
	link := filepath.Join(filepath.Dir(logs), "containers", "dead_default_main-"+randomID()+".log")
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"),
		os.WriteFile(filepath.Join(dir, "0.log"), []byte("x\n"), 0o640), os.MkdirAll(filepath.Dir(link), 0o755),
		os.Symlink(filepath.Join(logs, "default_before_"+d.uid, "main/0.log"), link)); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			d.t.Error(err)
		}
		os.RemoveAll(filepath.Dir(dir))
		os.Remove(link)
	})
}

// loopDevice creates one whose file was in the pod's directory, and returns it.
func (d *deadPod) loopDevice() string {
	d.t.Helper()
	file := filepath.Join(d.lab.Paths.KubeletRoot, "pods", d.uid, "disk")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<20)); err != nil {
		d.t.Fatal(err)
	}
	device := command(d.t, "losetup", "--find", "--show", file)
	d.t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			d.t.Errorf("%s", out)
		}
	})
	if err := os.Remove(file); err != nil {
		d.t.Fatal(err)
	}
	return device
}

// stagedVolume creates the directory of a raw volume, published for a pod or not, and returns it.
func (d *deadPod) stagedVolume(name, uid string) string {
	d.t.Helper()
	dir := filepath.Join(d.lab.Paths.KubeletRoot, "plugins/kubernetes.io/csi/volumeDevices", name)
	if err := os.MkdirAll(filepath.Join(dir, "dev", uid), 0o750); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// checkpoint adds the pod to kubelet's checkpoint of devices. kubelet reads it only at start.
func (d *deadPod) checkpoint() {
	d.t.Helper()
	file := filepath.Join(d.lab.Paths.KubeletRoot, "device-plugins/kubelet_internal_checkpoint")
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
	text := fmt.Sprintf(`{"Data":{"PodDeviceEntries":[{"PodUID":%q,"ContainerName":"main","ResourceName":"example.com/card",`+
		`"DeviceIDs":{"-1":["card0"]},"AllocResp":""}],"RegisteredDevices":{}},"Checksum":1}`, d.uid)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		err := os.Remove(file)
		if before != nil {
			err = os.WriteFile(file, before, 0o600)
		}
		if err != nil {
			d.t.Error(err)
		}
	})
}

// attachedVolume adds a volume unused on this node to the Node, and returns its handle.
func (d *deadPod) attachedVolume() string {
	d.t.Helper()
	const handle = "vol-of-nobody"
	patch := func(ctx context.Context, attached string) error {
		out, err := d.lab.Kubectl(ctx, "patch", "node", d.lab.NodeName, "--subresource=status", "--type=merge", "-p",
			`{"status":{"volumesAttached":`+attached+`}}`)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	if err := patch(d.t.Context(), `[{"name":"kubernetes.io/csi/`+goneDriver+`^`+handle+`","devicePath":""}]`); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := patch(context.WithoutCancel(d.t.Context()), "null"); err != nil {
			d.t.Error(err)
		}
	})
	return handle
}

// deadSocket creates a socket without a listener.
func deadSocket(t *testing.T, name string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(name)) })
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("unix", name); err == nil {
		c.Close()
		t.Fatal("somebody listens")
	}
	return name
}
