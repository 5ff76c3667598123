package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// containerNode is a node with the pods of two CSI drivers, each with driver and registrar, and a pod of a DaemonSet
// that hangs. All containers have run for an hour.
type containerNode struct {
	t          *testing.T
	tools      Tools
	pods       []*corev1.Pod
	containers []*cri.Container
	unix       strings.Builder   // /proc/PID/net/unix
	names      map[string]string // the driver that answers on a socket
	finding    finding.Finding
	action     Action
}

func newContainerNode(t *testing.T) *containerNode {
	n := &containerNode{t: t, names: map[string]string{endpointOf: driverName,
		kubeletRoot + "/plugins/" + otherDriver + "/csi.sock": otherDriver}}
	h := hosttest.Host(t, func(h *host.Host) {
		h.Paths.KubeletRoot, h.Paths.PluginRegistry = kubeletRoot, registry
		h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) {
			var pods []corev1.Pod
			for _, p := range n.pods {
				pods = append(pods, *p)
			}
			return pods, nil
		}
		h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return n.containers, nil }
		h.Plugins = kubelet.Plugins{Name: func(_ context.Context, endpoint string) (string, error) {
			if name := n.names[endpoint]; name != "" {
				return name, nil
			}
			return "", errOutage
		}}
	})
	m, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	settings := Defaults()
	settings.DaemonSets = []string{"kube-system/agent"}
	n.tools = Tools{Mutator: m, Host: h, Settings: settings, Log: slog.New(slog.DiscardHandler)}
	n.write("/proc/self/cgroup", "0::/system.slice/nodeagent.service\n")
	n.write("/proc/1/mountinfo", rootMount)
	n.write("/proc/1/net/tcp", tcpHead)
	a, b := n.pod("csi-a"), n.pod("csi-b")
	n.run(a, "driver", 30, "fakecsi")
	n.run(a, "registrar", 31, "csi-node-driver")
	n.run(b, "driver", 40, "fakecsi")
	n.run(b, "registrar", 41, "csi-node-driver")
	n.registers(a, 1, driverName)
	n.registers(b, 1, otherDriver)
	n.listens(30, 1030, endpointOf)
	n.listens(31, 1031, registry+"/"+driverName+"-reg.sock")
	n.listens(40, 1040, kubeletRoot+"/plugins/"+otherDriver+"/csi.sock")
	n.listens(41, 1041, registry+"/"+otherDriver+"-reg.sock")
	n.run(n.pod("agent"), "agent", 50, "agentd")
	n.aboutDriver()
	return n
}

const tcpHead = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// tcp adds sockets to the network namespace of a process: local and remote end, state, inode.
func (n *containerNode) tcp(pid int, lines ...string) {
	text := tcpHead
	for i, line := range lines {
		f := strings.Fields(line)
		text += fmt.Sprintf("%4d: %s %s %s 00000000:00000000 00:00000000 00000000 0 0 %s 1 0 0 100 0 0 10 0\n", i, f[0], f[1], f[2],
			f[3])
	}
	n.write(fmt.Sprintf("/proc/%d/net/tcp", pid), text)
}

const udpHead = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"

// udp adds a socket of UDP to the network namespace of a process: local end, state, inode.
func (n *containerNode) udp(pid int, local, state string, inode int) {
	n.write(fmt.Sprintf("/proc/%d/net/udp", pid), udpHead+fmt.Sprintf(
		" 1083: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %d 2 0000000000000000 0\n", local, state, inode))
}

const rootMount = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"

func (n *containerNode) aboutDriver() {
	n.action = reregisterDriver()
	n.finding = finding.Finding{Check: "csi-registration", Reason: "CSIGetInfoFailed",
		Subject: finding.Subject{Kind: "csi-driver", Name: driverName},
		Facts:   map[string]string{"socket": registry + "/" + driverName + "-reg.sock"}}
}

func (n *containerNode) aboutDaemonSet() {
	n.action = restartDaemonSetContainer()
	n.finding = finding.Finding{Check: "daemonset-hang", Reason: "DaemonSetPodNotAnswering",
		Subject: finding.Subject{Kind: "daemonset", Name: "kube-system/agent"},
		Facts:   map[string]string{"containerID": containerID(50)}}
}

func containerID(pid int) string {
	return strings.Repeat(fmt.Sprintf("%x", pid%16), 62) + fmt.Sprintf("%02d", pid)
}

// pod makes a pod of the DaemonSet with that name.
func (n *containerNode) pod(name string) *corev1.Pod {
	yes, grace := true, int64(10)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name + "-x7k2p",
			UID: types.UID(fmt.Sprintf("0d4a7c1e-5a52-4c4b-9a3f-%012d", len(n.pods))), OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: name,
				Controller: &yes}}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace},
	}
	n.pods = append(n.pods, p)
	return p
}

// run makes a container of a pod, with one process.
func (n *containerNode) run(p *corev1.Pod, name string, pid int, comm string) {
	at := n.tools.Host.Clock().Wall.Add(-time.Hour)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "example.com/" + comm + ":1"})
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name,
		ContainerID: "containerd://" + containerID(pid),
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}})
	n.containers = append(n.containers, &cri.Container{Id: containerID(pid), CreatedAt: at.UnixNano(),
		State: cri.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{"io.kubernetes.pod.uid": string(p.UID),
			"io.kubernetes.container.name": name}})
	n.process(pid, comm, fmt.Sprintf("0::/kubepods/burstable/pod%s/%s\n", p.UID, containerID(pid)))
}

func (n *containerNode) process(pid int, comm, cgroup string) {
	stat := fmt.Sprintf("%d (%s) S 1 %d %d 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 100 1000 10 18446744073709551615 1 1 0 "+
		"0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0\n", pid, comm, pid, pid)
	dir := fmt.Sprintf("/proc/%d", pid)
	n.write(dir+"/stat", stat)
	n.write(fmt.Sprintf("%s/task/%d/stat", dir, pid), stat)
	n.write(dir+"/cgroup", cgroup)
	n.write(dir+"/mountinfo", rootMount)
	n.link(dir+"/ns/net", "net:[1]")
	n.write(dir+"/net/tcp", tcpHead)
	n.write(dir+"/net/udp", udpHead)
	n.opens(pid, 0, "/dev/null")
}

// opens gives a process an open file, as a descriptor of both the process and its thread.
func (n *containerNode) opens(pid, fd int, target string) {
	n.link(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), target)
	n.link(fmt.Sprintf("/proc/%d/task/%d/fd/%d", pid, pid, fd), target)
	n.write(fmt.Sprintf("/proc/%d/task/%d/fdinfo/%d", pid, pid, fd), "pos:\t0\n")
}

// listens makes a process listen on a Unix socket.
func (n *containerNode) listens(pid, inode int, name string) {
	fmt.Fprintf(&n.unix, "0000000000000000: 00000002 00000000 00010000 0001 01 %d %s\n", inode, name)
	for _, p := range []int{30, 31, 40, 41, pid} {
		n.write(fmt.Sprintf("/proc/%d/net/unix", p), "Num RefCount Protocol Flags Type St Inode Path\n"+n.unix.String())
	}
	n.opens(pid, inode, fmt.Sprintf("socket:[%d]", inode))
}

// registers makes a container of a pod a driver's registrar, as the driver's DaemonSet declares it.
func (n *containerNode) registers(p *corev1.Pod, i int, driver string) {
	p.Spec.Volumes = []corev1.Volume{{Name: "registry", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: registry + "/"}}}}
	c := &p.Spec.Containers[i]
	c.Image = "registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.13.0"
	c.Args = []string{"--v=5", "--kubelet-registration-path=" + kubeletRoot + "/plugins/" + driver + "/csi.sock"}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "registry", MountPath: "/registration"}}
}

func (n *containerNode) write(name, text string) {
	n.t.Helper()
	hosttest.Write(n.t, n.tools.Host.Files.Root, name, text)
}

func (n *containerNode) link(name, target string) {
	n.t.Helper()
	name = n.tools.Host.Files.Path(name)
	_ = os.Remove(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(target, name)); err != nil {
		n.t.Fatal(err)
	}
}

// look returns the action's job, or its refusal.
func (n *containerNode) look() (Job, string) {
	n.t.Helper()
	job, err := n.action.Examine(n.t.Context(), n.tools, n.finding)
	if err != nil {
		return Job{}, err.Error()
	}
	return job, ""
}

// expect checks the look: want is a part of the refusal; empty: it would end the container of that process.
func (n *containerNode) expect(pid int, want string) {
	n.t.Helper()
	job, refused := n.look()
	if want == "" && (refused != "" || job.Identity["container"] != containerID(pid)) {
		n.t.Errorf("%q, %+v; want the container of %d ended", refused, job, pid)
	}
	if want != "" && !strings.Contains(refused, want) {
		n.t.Errorf("%q, %+v; want %q", refused, job, want)
	}
}
