package inspect

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// node is a node whose objects are real (mounts, cgroups, processes, network) in private directories, and whose
// witnesses answer what the test wants.
type node struct {
	t    testing.TB
	host *host.Host

	now        finding.Timestamp
	kubelet    []corev1.Pod
	cluster    []corev1.Pod
	sandboxes  []*cri.PodSandbox
	containers []*cri.Container
	records    []containers.Container
	leases     []leases.Lease
	tasks      []*tasks.Process
	stored     []string // IDs of containerd's records of sandboxes
	working    map[string]float64
	object     corev1.Node

	kubeletErr, clusterErr, runtimeErr, carrierErr error

	requests int // to the apiserver
	order    []string
}

// newNode makes a node on which one pod lives. Only for root.
func newNode(t testing.TB) *node {
	t.Helper()
	need.Root(t, "makes mounts, cgroups and networks")
	n := &node{t: t, now: host.Now(), working: map[string]float64{`config="orphan",lifecycle="sync",static=""`: 0}}
	files := host.Files{}
	n.object = *hosttest.Node()
	n.object.Status.NodeInfo.MachineID, n.object.Status.NodeInfo.BootID, _ = machine(files)
	dir := t.TempDir()
	n.host = hosttest.Host(t, func(h *host.Host) {
		h.Files = files
		h.Clock = func() finding.Timestamp { return n.now }
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
		h.Paths.CgroupRoot = "/nodeagent-inspect-test"
		h.Paths.CgroupDriver = "cgroupfs"
		n.witnesses(h)
	})
	n.mkdir(n.host.Paths.KubeletRoot, "pods")
	n.mkdir(n.host.Paths.StaticPods)
	n.mkdir(n.host.Paths.NetnsDirs[0])
	n.add(living, "web")
	return n
}

// witnesses sets the clients of h to return the node's answers, counts requests to the apiserver and records the order
// of requests.
func (n *node) witnesses(h *host.Host) {
	h.Kubelet.Pods = call(n, "kubelet", func() ([]corev1.Pod, error) { return n.kubelet, n.kubeletErr })
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return n.working, n.kubeletErr }
	h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: os.Getpid(), Comm: "kubelet"}, nil }
	h.Runtime.Process = func(context.Context) (host.Process, error) { return host.Process{PID: os.Getpid()}, nil }
	h.Runtime.Sandboxes = call(n, "runtime", func() ([]*cri.PodSandbox, error) { return n.sandboxes, n.runtimeErr })
	h.Runtime.Containers = call(n, "runtime", func() ([]*cri.Container, error) { return n.containers, n.runtimeErr })
	h.Containerd.Containers = call(n, "containerd", func() ([]containers.Container, error) { return n.records, nil })
	h.Containerd.Leases = call(n, "containerd", func() ([]leases.Lease, error) { return n.leases, nil })
	h.Containerd.Tasks = call(n, "containerd", func() ([]*tasks.Process, error) { return n.tasks, n.carrierErr })
	h.Containerd.Sandboxes = call(n, "containerd", func() ([]string, error) { return n.stored, n.carrierErr })
	h.Cluster.Pods = call(n, "apiserver", func() ([]corev1.Pod, error) { n.requests++; return n.cluster, n.clusterErr })
	h.Cluster.Node = call(n, "apiserver", func() (*corev1.Node, error) { n.requests++; return &n.object, n.clusterErr })
}

func call[T any](n *node, name string, answer func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) {
		if len(n.order) == 0 || n.order[len(n.order)-1] != name {
			n.order = append(n.order, name)
		}
		return answer()
	}
}

// add lets a pod live: the apiserver and kubelet have it.
func (n *node) add(uid, name string) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: name}}
	pod.Spec.NodeName = hosttest.NodeName
	n.kubelet, n.cluster = append(n.kubelet, pod), append(n.cluster, pod)
}

// remove deletes a pod from both.
func (n *node) remove(uid string) {
	deleted := func(p corev1.Pod) bool { return string(p.UID) == uid }
	n.kubelet, n.cluster = slices.DeleteFunc(n.kubelet, deleted), slices.DeleteFunc(n.cluster, deleted)
}

// inspector returns one with the default settings.
func (n *node) inspector(change ...func(*Settings)) *Inspector {
	s := settings()
	for _, f := range change {
		f(&s)
	}
	return New(n.host, s, slog.New(slog.DiscardHandler))
}

// sandbox makes CRI and containerd know a sandbox with one container.
func (n *node) sandbox(uid, id string) {
	n.sandboxes = append(n.sandboxes, &cri.PodSandbox{
		Id: id, CreatedAt: 7, Metadata: &cri.PodSandboxMetadata{Uid: uid, Namespace: "default", Name: "pod-" + uid[:8]},
	})
	n.containers = append(n.containers, &cri.Container{
		Id: strings.Repeat("c", 32) + id[:32], PodSandboxId: id, CreatedAt: 8,
		Metadata: &cri.ContainerMetadata{Name: "app"},
		State:    cri.ContainerState_CONTAINER_RUNNING,
		Labels:   map[string]string{uidLabel: uid, namespaceLabel: "default", nameLabel: "pod-" + uid[:8]},
	})
	n.leases = append(n.leases, leases.Lease{ID: id})
	n.records = append(n.records, containers.Container{ID: id, Labels: map[string]string{kindLabel: "sandbox",
		uidLabel: uid}})
}

// podDir returns a directory of a pod, which it makes.
func (n *node) podDir(uid string, parts ...string) string {
	return n.mkdir(append([]string{n.host.Paths.KubeletRoot, "pods", uid}, parts...)...)
}

func (n *node) mkdir(parts ...string) string {
	n.t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// mount mounts something below a pod's directory.
func (n *node) mount(source, dir, kind string, flags uintptr) {
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

// cgroups makes a cgroup in all hierarchies of the machine and returns their directories.
func (n *node) cgroups(name string) []string {
	n.t.Helper()
	mounts, err := mount.Table(n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	var dirs []string
	for _, h := range cgroup.CgroupHierarchies(mounts, n.host.Paths.CgroupMount) {
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

// process runs a process in cgroups until the test ends.
func (n *node) process(cgroups ...string) int {
	n.t.Helper()
	process, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = process.Signal(syscall.SIGKILL); _, _ = process.Wait() })
	for _, dir := range cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(process.Pid)), 0o644); err != nil {
			n.t.Logf("%s: %v", dir, err) // cpuset wants to be configured first
		}
	}
	return process.Pid
}

// processIn runs a process in a mounted network namespace until the test ends.
func (n *node) processIn(netns string) int {
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
			started <- n.process()
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

// attach makes a network namespace and has the real bridge and host-local plugins attach it. It must be called within
// hosttest.PrivateNetwork. It returns the path of the namespace.
func (n *node) attach(uid, sandbox string) string {
	n.t.Helper()
	const plugins = "/usr/lib/cni"
	need.Program(n.t, plugins+"/bridge")
	netns := filepath.Join(n.host.Paths.NetnsDirs[0], "cni-"+uid)
	hosttest.PinNetns(n.t, netns)
	list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(conflist, n.host.Paths.CNINetworksDir)))
	if err != nil {
		n.t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{plugins}, n.host.Paths.CNICacheDir, nil)
	_, err = cni.AddNetworkList(n.t.Context(), list, &libcni.RuntimeConf{
		ContainerID: sandbox, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p"},
			{"K8S_POD_UID", uid}},
	})
	if err != nil {
		n.t.Fatalf("CNI ADD: %v", err)
	}
	return netns
}

// verdicts counts the verdicts of a report by kind.
func verdicts(report Report) map[Kind]map[Verdict]int {
	counts := make(map[Kind]map[Verdict]int)
	for _, o := range report.Objects {
		if counts[o.Kind] == nil {
			counts[o.Kind] = make(map[Verdict]int)
		}
		counts[o.Kind][o.Verdict]++
	}
	return counts
}

// ofPod returns the verdicts on the objects of one pod.
func ofPod(report Report, uid string) []Verdict {
	found := make(map[Verdict]bool)
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			found[o.Verdict] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// after lets time pass.
func (n *node) after(d time.Duration) {
	n.now.SinceBoot += d
	n.now.Wall = n.now.Wall.Add(d)
}
