// Package inspecttest has a node for tests of inspections: its objects are real, its witnesses give the test's answers.
package inspecttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	containers "github.com/containerd/containerd/v2/core/containers"
	leases "github.com/containerd/containerd/v2/core/leases"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// Node is a node with real objects (mounts, cgroups, processes, network) in private directories, and witnesses that
// give the test's answers.
type Node struct {
	t    testing.TB
	Host *host.Host

	Now        finding.Timestamp
	Kubelet    []corev1.Pod
	Cluster    []corev1.Pod
	Sandboxes  []*cri.PodSandbox
	Containers []*cri.Container
	Records    []containers.Container
	Leases     []leases.Lease
	Tasks      []*tasks.Process
	Stored     []string // IDs of containerd's records of sandboxes
	Working    map[string]float64
	NodeObject corev1.Node

	KubeletErr, ClusterErr, RuntimeErr, CarrierErr error

	Requests int      // to the apiserver
	Order    []string // of the witnesses' answers
}

// UIDs of pods and IDs of sandboxes.
const (
	Living      = "11111111-1111-4111-8111-111111111111"
	Dead        = "22222222-2222-4222-8222-222222222222"
	Other       = "33333333-3333-4333-8333-333333333333"
	Sandbox     = "5555555555555555555555555555555555555555555555555555555555555555"
	DeadSandbox = "6666666666666666666666666666666666666666666666666666666666666666"
	NewSandbox  = "7777777777777777777777777777777777777777777777777777777777777777"
)

// NewNode makes a node on which the pod Living lives. Only for root.
func NewNode(t testing.TB) *Node {
	t.Helper()
	need.Root(t, "makes mounts, cgroups and networks")
	n := &Node{t: t, Now: host.Now(), Working: map[string]float64{`config="orphan",lifecycle="sync",static=""`: 0}}
	files := host.Files{}
	n.NodeObject = *hosttest.Node()
	info := &n.NodeObject.Status.NodeInfo
	info.BootID, _ = files.Text("/proc/sys/kernel/random/boot_id")
	var err error
	if info.MachineID, err = files.Text("/etc/machine-id"); err != nil {
		info.MachineID, _ = files.Text("/var/lib/dbus/machine-id")
	}
	dir := t.TempDir()
	n.Host = hosttest.Host(t, func(h *host.Host) {
		h.Files = files
		h.Clock = func() finding.Timestamp { return n.Now }
		h.Paths.InitPID = os.Getpid()
		h.Paths.KubeletRoot = filepath.Join(dir, "kubelet")
		h.Paths.PluginRegistry = filepath.Join(dir, "kubelet", "plugins_registry")
		h.Plugins = kubelet.NewPlugins(h.Paths.KubeletRoot)
		h.Paths.StaticPods = filepath.Join(dir, "manifests")
		h.Paths.PodLogs = filepath.Join(dir, "logs")
		h.Paths.CNICacheDir = filepath.Join(dir, "cni")
		h.Paths.CNINetworksDir, h.Paths.CNIConfDir = filepath.Join(dir, "networks"), filepath.Join(dir, "net.d")
		h.Paths.ContainerdState, h.Paths.ContainerdRoot = filepath.Join(dir, "state"), filepath.Join(dir, "root")
		h.Paths.ContainerdSocket = filepath.Join(dir, "containerd.sock")
		h.Paths.NetnsDirs = []string{filepath.Join(dir, "netns")}
		h.Paths.CgroupRoot = "/nodeagent-inspect-test-" + strings.ToLower(rand.Text()[:8]) // unique
		h.Paths.CgroupDriver = "cgroupfs"
		n.witnesses(h)
	})
	n.Mkdir(n.Host.Paths.KubeletRoot, "pods")
	n.Mkdir(n.Host.Paths.StaticPods)
	n.Mkdir(n.Host.Paths.NetnsDirs[0])
	n.Add(Living, "web")
	return n
}

// witnesses sets the clients of h to return the node's answers, counts requests to the apiserver and records the order
// of requests.
func (n *Node) witnesses(h *host.Host) {
	h.Kubelet.Pods = call(n, "kubelet", func() ([]corev1.Pod, error) { return n.Kubelet, n.KubeletErr })
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return n.Working, n.KubeletErr }
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: os.Getpid(), Comm: "kubelet"}, nil }
	h.Runtime.Process = func(context.Context) (host.Process, error) { return host.Process{PID: os.Getpid()}, nil }
	h.Runtime.Sandboxes = call(n, "runtime", func() ([]*cri.PodSandbox, error) { return n.Sandboxes, n.RuntimeErr })
	h.Runtime.Containers = call(n, "runtime", func() ([]*cri.Container, error) { return n.Containers, n.RuntimeErr })
	h.Containerd.Containers = call(n, "containerd", func() ([]containers.Container, error) { return n.Records, nil })
	h.Containerd.Leases = call(n, "containerd", func() ([]leases.Lease, error) { return n.Leases, nil })
	h.Containerd.Tasks = call(n, "containerd", func() ([]*tasks.Process, error) { return n.Tasks, n.CarrierErr })
	h.Containerd.Sandboxes = call(n, "containerd", func() ([]string, error) { return n.Stored, n.CarrierErr })
	h.Cluster.Pods = call(n, "apiserver", func() ([]corev1.Pod, error) {
		n.Requests++
		return n.Cluster,
			n.ClusterErr
	})
	h.Cluster.Node = call(n, "apiserver", func() (*corev1.Node, error) {
		n.Requests++
		return &n.NodeObject,
			n.ClusterErr
	})
}

func call[T any](n *Node, name string, answer func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) {
		if len(n.Order) == 0 || n.Order[len(n.Order)-1] != name {
			n.Order = append(n.Order, name)
		}
		return answer()
	}
}

// Add starts a pod: the apiserver and kubelet have it.
func (n *Node) Add(uid, name string) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: name}}
	pod.Spec.NodeName = hosttest.NodeName
	n.Kubelet, n.Cluster = append(n.Kubelet, pod), append(n.Cluster, pod)
}

// Remove deletes a pod from both.
func (n *Node) Remove(uid string) {
	deleted := func(p corev1.Pod) bool { return string(p.UID) == uid }
	n.Kubelet, n.Cluster = slices.DeleteFunc(n.Kubelet, deleted), slices.DeleteFunc(n.Cluster, deleted)
}

// Sandbox makes CRI and containerd know a sandbox with one container.
func (n *Node) Sandbox(uid, id string) {
	n.Sandboxes = append(n.Sandboxes, &cri.PodSandbox{
		Id: id, CreatedAt: 7, Metadata: &cri.PodSandboxMetadata{Uid: uid, Namespace: "default",
			Name: "pod-" + uid[:8]},
	})
	n.Containers = append(n.Containers, &cri.Container{
		Id: strings.Repeat("c", 32) + id[:32], PodSandboxId: id, CreatedAt: 8,
		Metadata: &cri.ContainerMetadata{Name: "app"},
		State:    cri.ContainerState_CONTAINER_RUNNING,
		Labels: map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": "default",
			"io.kubernetes.pod.name": "pod-" + uid[:8]},
	})
	n.Leases = append(n.Leases, leases.Lease{ID: id})
	n.Records = append(n.Records, containers.Container{ID: id,
		Labels: map[string]string{"io.cri-containerd.kind": "sandbox",
			"io.kubernetes.pod.uid": uid}})
}

// PodDir returns a directory of a pod, which it makes.
func (n *Node) PodDir(uid string, parts ...string) string {
	return n.Mkdir(append([]string{n.Host.Paths.KubeletRoot, "pods", uid}, parts...)...)
}

// Mkdir makes a directory.
func (n *Node) Mkdir(parts ...string) string {
	n.t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// Write writes a file below kubelet's root, and makes its directories.
func (n *Node) Write(text string, parts ...string) string {
	n.t.Helper()
	name := filepath.Join(append([]string{n.Host.Paths.KubeletRoot}, parts...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, []byte(text),
		0o600)); err != nil {
		n.t.Fatal(err)
	}
	return name
}

// Mount makes a mount below a pod's directory.
func (n *Node) Mount(source, dir, kind string, flags uintptr) {
	n.t.Helper()
	if err := unix.Mount(source, dir, kind, flags, ""); err != nil {
		n.t.Fatalf("mount %s: %v", dir, err)
	}
	n.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			n.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// Cgroups makes a cgroup in all hierarchies of the machine and returns their directories.
func (n *Node) Cgroups(name string) []string {
	n.t.Helper()
	mounts, err := mount.Table(n.Host)
	if err != nil {
		n.t.Fatal(err)
	}
	var dirs []string
	for _, h := range cgroup.CgroupHierarchies(mounts, n.Host.Paths.CgroupMount) {
		dir := filepath.Join(h.Point, name)
		dirs = append(dirs, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() {
			for ; dir != filepath.Clean(h.Point); dir = filepath.Dir(dir) {
				if os.Remove(dir) != nil {
					return // another one is still below it, and takes it away
				}
			}
		})
	}
	return dirs
}

// Process runs a process in cgroups until the test ends.
func (n *Node) Process(cgroups ...string) int {
	n.t.Helper()
	process, err := os.StartProcess("/bin/sleep", []string{"sleep", "100000"}, &os.ProcAttr{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = process.Signal(syscall.SIGKILL); _, _ = process.Wait() })
	for _, dir := range cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(process.Pid)),
			0o644); err != nil {
			n.t.Logf("%s: %v", dir, err) // cpuset wants to be configured first
		}
	}
	return process.Pid
}

// Shim runs a process with the ID of a sandbox on its command line.
func (n *Node) Shim(id string) {
	n.t.Helper()
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		n.t.Fatal(err)
	}
	program := filepath.Join(n.t.TempDir(), "containerd-shim-runc-v2")
	if err := executable.Write(program, shell); err != nil {
		n.t.Fatal(err)
	}
	process, err := os.StartProcess(program, []string{program, "-c", "sleep 60; :", "-", "-namespace", "k8s.io", "-id",
		id}, &os.ProcAttr{Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = syscall.Kill(-process.Pid, syscall.SIGKILL); _, _ = process.Wait() })
}

// ProcessIn runs a process in a mounted network namespace until the test ends.
func (n *Node) ProcessIn(netns string) int {
	n.t.Helper()
	started := make(chan int)
	go func() {
		defer close(started)
		thread.Spoil()
		file, err := os.Open(netns)
		if err != nil {
			return
		}
		defer file.Close()
		if unix.Setns(int(file.Fd()), unix.CLONE_NEWNET) == nil {
			started <- n.Process()
		}
	}()
	pid, ok := <-started
	if !ok {
		n.t.Fatalf("no process in %s", netns)
	}
	return pid
}

const conflist = `{"cniVersion":"1.0.0","name":"nodeagent-inspect-test","plugins":[{"type":"bridge","bridge":"nabr0",
"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.250.7.0/24"}]]}}]}`

// Attach makes a network namespace and has the real bridge and host-local plugins attach it. It must be called within
// hosttest.PrivateNetwork. It returns the path of the namespace.
func (n *Node) Attach(uid, sandbox string) string {
	n.t.Helper()
	netns := filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+uid)
	hosttest.PinNetns(n.t, netns)
	n.AttachTo(netns, uid, sandbox, "eth0", fmt.Sprintf(conflist, n.Host.Paths.CNINetworksDir))
	return netns
}

// AttachTo is Attach for an existing namespace, with any configuration: a list of plugins, or a single one as Multus
// accepts too.
func (n *Node) AttachTo(netns, uid, sandbox, ifName, config string) {
	n.t.Helper()
	const plugins = "/usr/lib/cni"
	need.Program(n.t, plugins+"/bridge")
	cni := libcni.NewCNIConfigWithCacheDir([]string{plugins}, n.Host.Paths.CNICacheDir, nil)
	attachment := &libcni.RuntimeConf{
		ContainerID: sandbox, NetNS: netns, IfName: ifName,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p"},
			{"K8S_POD_UID", uid}},
	}
	list, err := libcni.ConfListFromBytes([]byte(config))
	if err == nil && len(list.Plugins) > 0 {
		_, err = cni.AddNetworkList(n.t.Context(), list, attachment)
	} else if plugin, single := libcni.NetworkPluginConfFromBytes([]byte(config)); single == nil {
		_, err = cni.AddNetwork(n.t.Context(), plugin, attachment)
	}
	if err != nil {
		n.t.Fatalf("CNI ADD: %v", err)
	}
}

// After lets time pass.
func (n *Node) After(d time.Duration) {
	n.Now.SinceBoot += d
	n.Now.Wall = n.Now.Wall.Add(d)
}
