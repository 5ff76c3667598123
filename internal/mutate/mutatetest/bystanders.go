package mutatetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/internal/mutate"
)

// Bystanders are objects beside a deleted pod that no release may touch. They resemble leftovers as closely as live
// objects can.
type Bystanders struct {
	Kubelet []corev1.Pod // the pods among them, as kubelet knows them
	Cluster []corev1.Pod // and as the apiserver knows them

	starting  madePod // the pod that has no sandbox yet
	node      *Node
	processes []mutate.Process
	before    Census
}

// madePod identifies the objects that a runtime creates for a pod.
type madePod struct{ uid, id string }

// NodeName is the name of the Node object that a Node stands for.
const NodeName = "node"

// Bystanders creates all of them and compares them when the test ends: every file, mount and process.
func (n *Node) Bystanders() *Bystanders {
	n.t.Helper()
	b := &Bystanders{node: n}
	b.livingPod()
	b.systemdInAPod()
	b.staticPod()
	b.succeededPod()
	b.statefulPod()
	b.startingPod()
	b.foreignKubelet()
	b.otherEngines()
	b.network()
	b.before = b.census()
	n.t.Cleanup(func() {
		for _, harm := range b.before.Missing(b.census(), n.Dir) {
			n.t.Errorf("a bystander was harmed: %s", harm)
		}
	})
	return b
}

// census lists the machine and the bystanders' processes.
func (b *Bystanders) census() Census {
	c := b.node.Census()
	for _, p := range b.processes {
		stat, err := b.node.Host.ProcStat(p.PID)
		c[fmt.Sprintf("process %d", p.PID)] = fmt.Sprint(stat.StartTime, stat.State == 'Z', err)
	}
	return c
}

// pod adds a pod that kubelet and the apiserver know by the same UID.
func (b *Bystanders) pod(uid, namespace, name string, phase corev1.PodPhase) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: NodeName},
		Status:     corev1.PodStatus{Phase: phase},
	}
	b.Kubelet, b.Cluster = append(b.Kubelet, pod), append(b.Cluster, pod)
	return pod
}

// dir is a directory of the host that belongs to no pod.
func (b *Bystanders) dir(parts ...string) string {
	return filepath.Join(append([]string{b.node.Dir, "bystanders"}, parts...)...)
}

func (b *Bystanders) process(uid string, cgroups []string) {
	b.node.t.Helper()
	b.processes = append(b.processes, b.node.Shell(uid, cgroups, "echo ready; exec sleep 100000"))
}

// livingPod has a volume in memory, an emptyDir with data, a bind of a directory of the same filesystem, and a bind of
// a directory on which the host mounts its own disk later: on a shared root the disk also appears in the pod's
// directory.
func (b *Bystanders) livingPod() {
	n, uid := b.node, UID(b.node.t)
	b.pod(uid, "default", "living", corev1.PodRunning)
	b.process(uid, n.Cgroups(uid, Hex(n.t, 64)))
	n.Mount("tmpfs", n.PodDir(uid, "volumes/kubernetes.io~projected/token"), "tmpfs", 0)
	n.Write(n.PodDir(uid, "volumes/kubernetes.io~projected/token/token"), "secret")
	n.Write(n.PodDir(uid, "volumes/kubernetes.io~empty-dir/cache/data"), "user data")
	n.Write(n.PodDir(uid, "etc-hosts"), "127.0.0.1 localhost\n")
	n.Write(b.dir("data/sub/canary"), "alive")
	n.Mount(b.dir("data/sub"), n.PodDir(uid, "volume-subpaths/data/app/0"), "", unix.MS_BIND)
	n.Write(b.dir("share/canary"), "alive")
	n.Mount(b.dir("share"), n.PodDir(uid, "volumes/kubernetes.io~local-volume/share"), "", unix.MS_BIND)
	n.Mount("tmpfs", b.dir("share/disk"), "tmpfs", 0)
	n.Write(b.dir("share/disk/canary"), "the host's disk")
}

// systemdInAPod: a pod that runs systemd names its cgroups like the host's units.
func (b *Bystanders) systemdInAPod() {
	n, uid, id := b.node, UID(b.node.t), Hex(b.node.t, 64)
	b.pod(uid, "default", "systemd", corev1.PodRunning)
	var cgroups [][]string
	for _, name := range []string{"system.slice/kubelet.service", "user.slice", "kubepods.slice", "init.scope"} {
		cgroups = append(cgroups, n.Cgroups(uid, filepath.Join(id, name)))
	}
	for _, dirs := range cgroups[:2] {
		b.process(uid, dirs)
	}
}

// staticPod is known to kubelet by a hash, and to the apiserver by its mirror's UID. It uses the host's network.
func (b *Bystanders) staticPod() {
	n, uid := b.node, Hex(b.node.t, 32)
	annotations := map[string]string{"kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file"}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "kube-system", Name: "etcd-" + NodeName,
			Annotations: annotations},
		Spec:   corev1.PodSpec{NodeName: NodeName, HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	b.Kubelet = append(b.Kubelet, pod)
	mirror := *pod.DeepCopy()
	mirror.UID = types.UID(UID(n.t))
	mirror.Annotations["kubernetes.io/config.mirror"] = uid
	b.Cluster = append(b.Cluster, mirror)
	b.process(uid, n.Cgroups(uid, Hex(n.t, 64)))
	n.Write(n.PodDir(uid, "etc-hosts"), "127.0.0.1 localhost\n")
	if dir := n.Host.Paths.StaticPods; dir != "" {
		n.Write(filepath.Join(dir, "etcd.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd, namespace: "+
			"kube-system}\n")
	}
}

// succeededPod has ended, but its directory still belongs to it.
func (b *Bystanders) succeededPod() {
	n, uid := b.node, UID(b.node.t)
	b.pod(uid, "default", "job", corev1.PodSucceeded)
	n.Cgroups(uid, "")
	n.Write(n.PodDir(uid, "volumes/kubernetes.io~empty-dir/out/result"), "42")
	n.Write(n.PodDir(uid, "containers/app/1a2b3c4d"), "")
}

// statefulPod was re-created with the name of a deleted pod.
func (b *Bystanders) statefulPod() {
	n, uid, id := b.node, UID(b.node.t), Hex(b.node.t, 64)
	b.pod(uid, "default", "p", corev1.PodRunning) // the name in the attachments of Attach
	b.process(uid, n.Cgroups(uid, id))
	b.attachment(uid, id, "p", "10.204.0.2")
	n.Write(n.PodDir(uid, "volumes/kubernetes.io~csi/pvc/vol_data.json"), `{"driverName":"living.example.com"}`)
}

// startingPod is being created: the runtime has a network and a cgroup without processes for it, and lists no sandbox.
func (b *Bystanders) startingPod() {
	n, uid, id := b.node, UID(b.node.t), Hex(b.node.t, 64)
	b.pod(uid, "default", "starting", corev1.PodPending)
	b.starting = madePod{uid, id}
	n.Cgroups(uid, id)
	n.Mkdir(n.PodDir(uid, "volumes"))
	b.attachment(uid, id, "starting", "10.204.0.3")
}

// attachment attaches a pod to a network: the mount of its namespace, libcni's cache file, and the lease of an address.
func (b *Bystanders) attachment(uid, id, name, address string) {
	n := b.node
	pin := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+UID(n.t))).Path
	args := fmt.Sprintf(
		`[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME",%q],["K8S_POD_UID",%q]]`, name, uid)
	n.Write(filepath.Join(n.Host.Paths.CNICacheDir, "results", "bystanders-"+id+"-eth0"), fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"bystanders","netns":%q,"cniArgs":%s,"result":`+
			`{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"version":"4","interface":0,"address":%q}]}}`,
		id, pin, args, pin, address+"/24"))
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, "bystanders", address), id+"\r\neth0")
}

// foreignKubelet is a node in a container: its own root directory, and its own cgroup tree below the container's
// cgroup.
func (b *Bystanders) foreignKubelet() {
	n, uid := b.node, UID(b.node.t)
	n.Write(b.dir("node", "pods", uid, "etc-hosts"), "127.0.0.1 localhost\n")
	n.Mount("tmpfs", b.dir("node", "pods", uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
	b.process(uid, n.cgroupsAt("docker/"+Hex(n.t, 64)+"/kubelet/kubepods/besteffort/pod"+uid+"/"+Hex(n.t, 64)))
}

// otherEngines are containers that belong to no pod: docker's, podman's, and one started by hand.
func (b *Bystanders) otherEngines() {
	n := b.node
	for _, name := range []string{"docker/" + Hex(n.t, 64), "machine.slice/libpod-" + Hex(n.t, 64) + ".scope",
		"default/mine"} {
		b.process("", n.cgroupsAt(name))
	}
}

// network has a namespace and a pair of links created by hand, and podman's network with its own leases.
func (b *Bystanders) network() {
	n := b.node
	n.MountNetns(filepath.Join(n.Dir, "netns", "mine"))
	name := "by" + Hex(n.t, 6)
	n.t.Cleanup(func() { _ = exec.Command("/sbin/ip", "link", "del", name).Run() })
	for _, args := range [][]string{
		{"link", "add", name, "type", "veth", "peer", "name", name + "p"},
		{"link", "set", name, "up"},
	} {
		if output, err := exec.Command("/sbin/ip", args...).CombinedOutput(); err != nil {
			n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, output)
		}
	}
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, "podman", "10.88.0.2"), Hex(n.t, 64)+"\r\neth0")
}

// cgroupsAt creates a cgroup below the node's root in every hierarchy and returns the directories.
func (n *Node) cgroupsAt(name string) []string {
	n.t.Helper()
	return n.cgroupsBelow(name, func(top string) {
		removeCgroups(filepath.Join(top, name))
		for dir := filepath.Dir(filepath.Join(top, name)); dir != filepath.Dir(top); dir = filepath.Dir(dir) {
			_ = os.Remove(dir) // the last one removes it
		}
	})
}
