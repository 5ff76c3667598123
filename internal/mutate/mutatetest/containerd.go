package mutatetest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/test/need"
)

// Image is the name of the only image of a private containerd: busybox.
const Image = "registry.k8s.io/pause:handtest"

// Containerd is a private container runtime with its own root, state and socket.
type Containerd struct {
	t       testing.TB
	Dir     string
	Socket  string
	Client  cri.RuntimeServiceClient
	Images  cri.ImageServiceClient
	ConfDir string // CNI configuration; initially without files
	BinDir  string // CNI plugins of the test, without Debian's
	process *exec.Cmd
}

// StartContainerd starts a private containerd, the first in the PATH: its shim must be beside it. containerd 2 also
// reads this older version of the configuration.
func StartContainerd(t testing.TB) *Containerd {
	t.Helper()
	Root(t)
	need.Program(t, "containerd", "ctr", "/bin/busybox")
	dir, err := os.MkdirTemp("", "ctd") // short, for the socket's name
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{
		t: t, Dir: dir, Socket: filepath.Join(dir, "s.sock"), ConfDir: filepath.Join(dir, "net.d"),
		BinDir: filepath.Join(dir, "bin"),
	}
	t.Cleanup(func() { c.stop() })
	c.write("config.toml", c.config())
	for _, sub := range []string{c.ConfDir, c.BinDir} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.Start()
	connection, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	c.Client, c.Images = cri.NewRuntimeServiceClient(connection), cri.NewImageServiceClient(connection)
	c.ready()
	t.Cleanup(c.removeAll)
	c.Import(Image, nil)
	return c
}

// Start starts the daemon, also after Kill.
func (c *Containerd) Start() {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	c.process = exec.Command("containerd", "--config", filepath.Join(c.Dir, "config.toml"))
	c.process.Stdout, c.process.Stderr = log, log
	c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.process.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// Kill kills the daemon; its shims go on.
func (c *Containerd) Kill() {
	_ = c.process.Process.Kill()
	_ = c.process.Wait()
}

// Import gives the runtime an image of busybox, and of data in a file. The archive of one without data stays, image.tar
// in Dir, for other namespaces of containerd.
func (c *Containerd) Import(name string, data []byte) {
	c.t.Helper()
	file := "image.tar"
	if data != nil {
		file = "data.tar"
	}
	archive := c.write(file, string(imageArchive(c.t, name, data)))
	c.Ctr("k8s.io", "image", "import", archive)
	if data == nil {
		return
	}
	c.label(name)
	if err := os.Remove(archive); err != nil {
		c.t.Error(err)
	}
}

// label marks the manifest of an image as pulled from a registry, and gives the image a name with its digest.
func (c *Containerd) label(name string) {
	c.t.Helper()
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(c.Ctr("k8s.io", "image", "list", "name=="+name))
	repository, _, _ := strings.Cut(path.Base(name), ":")
	registry, _, _ := strings.Cut(name, "/")
	c.Ctr("k8s.io", "content", "label", digest, "containerd.io/distribution.source."+registry+"="+repository)
	c.Ctr("k8s.io", "image", "tag", name, registry+"/"+repository+"@"+digest)
}

func (c *Containerd) config() string {
	return fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "%[2]s"
[ttrpc]
  address = "%[2]s.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "%[5]s"
  conf_dir = "%[4]s"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "%[1]s/runc"
  SystemdCgroup = false
`, c.Dir, c.Socket, Image, c.ConfDir, c.BinDir)
}

func (c *Containerd) write(name, content string) string {
	c.t.Helper()
	name = filepath.Join(c.Dir, name)
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return name
}

// ready waits until the runtime answers.
func (c *Containerd) ready() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.Client.Version(ctx, &cri.VersionRequest{})
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(c.Dir, "log"))
			c.t.Fatalf("containerd: %v\n%s", err, log)
		case <-tick.C:
		}
	}
}

// Signal sends a signal to the daemon. After a SIGSTOP it returns once all threads have stopped; the test must then
// send SIGCONT.
func (c *Containerd) Signal(signal syscall.Signal) {
	c.t.Helper()
	err := c.process.Process.Signal(signal)
	if err == nil && signal == syscall.SIGSTOP {
		err = unix.Waitid(unix.P_PID, c.process.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// Sandbox runs a sandbox in the host's network, or in its own when cni is set.
func (c *Containerd) Sandbox(uid, cgroupParent string, cni bool) *cri.PodSandbox {
	c.t.Helper()
	mode := cri.NamespaceMode_NODE
	if cni {
		mode = cri.NamespaceMode_POD
	}
	answer, err := c.Client.RunPodSandbox(c.t.Context(),
		&cri.RunPodSandboxRequest{Config: c.podConfig(uid, cgroupParent, mode)})
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := c.Client.ListPodSandbox(c.t.Context(),
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: answer.PodSandboxId}})
	if err != nil || len(list.Items) != 1 {
		c.t.Fatalf("sandbox %s: %v, %v", answer.PodSandboxId, list, err)
	}
	c.t.Cleanup(c.removeAll) // before the test's cgroups go
	return list.Items[0]
}

func (c *Containerd) podConfig(uid, cgroupParent string, mode cri.NamespaceMode) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "p-" + uid[:8], Namespace: "default", Uid: uid},
		Labels: map[string]string{
			"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "p-" +
				uid[:8],
		},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    cgroupParent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: mode}},
		},
	}
}

// Container starts a container in a sandbox. Its process is init of a PID namespace and thus ignores SIGTERM.
func (c *Containerd) Container(sandbox *cri.PodSandbox, cgroupParent string,
	set ...func(*cri.ContainerConfig)) *cri.Container {
	c.t.Helper()
	uid := sandbox.Metadata.Uid
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "app"}, Image: &cri.ImageSpec{Image: Image},
		Labels: map[string]string{"io.kubernetes.pod.uid": uid}, Linux: &cri.LinuxContainerConfig{},
		Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "1"},
	}
	for _, s := range set {
		s(config)
	}
	madePod, err := c.Client.CreateContainer(c.t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: sandbox.Id, SandboxConfig: c.podConfig(uid, cgroupParent, cri.NamespaceMode_NODE), Config: config,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.Client.StartContainer(c.t.Context(),
		&cri.StartContainerRequest{ContainerId: madePod.ContainerId}); err != nil {
		c.t.Fatal(err)
	}
	list, err := c.Client.ListContainers(c.t.Context(),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: madePod.ContainerId}})
	if err != nil || len(list.Containers) != 1 {
		c.t.Fatalf("container %s: %v, %v", madePod.ContainerId, list, err)
	}
	return list.Containers[0]
}

// removeAll ends the containers and sandboxes that the test left running.
func (c *Containerd) removeAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), time.Minute)
	defer cancel()
	list, err := c.Client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		c.t.Errorf("clean up: %v", err)
		return
	}
	for _, s := range list.Items {
		if _, err := c.Client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id}); err == nil {
			_, _ = c.Client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		}
	}
}

// stop ends containerd and its shims, which name its socket on their command line.
func (c *Containerd) stop() {
	if c.process != nil && c.process.Process != nil {
		_ = c.process.Process.Signal(syscall.SIGTERM)
		_ = c.process.Wait()
	}
	h := &host.Host{}
	pids, _ := h.PIDs()
	for _, pid := range pids {
		if args, err := h.ProcArgs(pid); err == nil && strings.Contains(strings.Join(args, " "), c.Socket) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	mounts, _ := mount.TableOf(h, os.Getpid())
	for i := len(mounts) - 1; i >= 0; i-- {
		if mount.Below(mounts[i].Point, c.Dir) {
			_ = unix.Unmount(mounts[i].Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	_ = os.RemoveAll(c.Dir)
}

// imageArchive returns an image in the format of `docker save` that contains busybox and data.
func imageArchive(t testing.TB, name string, data []byte) []byte {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	layer := tarball(t, map[string][]byte{"busybox": busybox, "data": data}, []string{"busybox", "data"})
	sum := sha256.Sum256(layer)
	config := mustJSON(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/busybox", "sleep", "100000"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	manifest := mustJSON(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"}}})
	return tarball(t, map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest},
		[]string{"layer.tar", "config.json", "manifest.json"})
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func tarball(t testing.TB, files map[string][]byte, order []string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range order {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
