package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	kubeletRoot = "/var/lib/kubelet"
	registry    = kubeletRoot + "/plugins_registry"
	driverName  = "a.csi.example.com"
	endpointOf  = kubeletRoot + "/plugins/" + driverName + "/csi.sock"
	otherDriver = "b.csi.example.com"
)

// The guards against ending a container hold for all actions that end one.
func TestContainerGuards(t *testing.T) {
	for name, test := range map[string]struct {
		change func(n *containerNode, p *corev1.Pod, c *cri.Container, pid int)
		want   string
	}{
		"nothing is against it": {func(*containerNode, *corev1.Pod, *cri.Container, int) {}, ""},
		"FUSE": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			n.opens(pid, 7, "/dev/fuse")
		}, "holds /dev/fuse"},
		"nbd": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) { n.opens(pid, 7, "/dev/nbd3") },
			"holds /dev/nbd3"},
		"ublk": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) { n.opens(pid, 7, "/dev/ublkc0") },
			"holds /dev/ublkc0"},
		"nbd over netlink": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			n.write("/sys/block/nbd1/pid", fmt.Sprintf("%d\n", pid))
		}, "holds /dev/nbd1"},
		"FUSE of a child": {func(n *containerNode, p *corev1.Pod, c *cri.Container, _ int) {
			n.process(77, "ceph-fuse", fmt.Sprintf("0::/kubepods/burstable/pod%s/%s/below\n", p.UID, c.Id))
			n.opens(77, 7, "/dev/fuse")
		}, "process 77 (ceph-fuse)"},
		"files that cannot be read": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			thread := n.tools.Host.Files.Path(fmt.Sprintf("/proc/%d/task/%d0", pid, pid)) // after the main one, which listens
			if err := errors.Join(os.MkdirAll(thread, 0o700), os.WriteFile(filepath.Join(thread, "fd"), nil, 0o600)); err != nil {
				n.t.Fatal(err)
			}
		}, "open files of process"},
		"young": {func(n *containerNode, p *corev1.Pod, _ *cri.Container, pid int) {
			n.status(p, pid).State.Running.StartedAt = metav1.NewTime(n.tools.Host.Clock().Wall.Add(-4 * time.Minute))
		}, "was started 4m0s ago, less than 5m0s"},
		"from the future": {func(n *containerNode, p *corev1.Pod, _ *cri.Container, pid int) {
			n.status(p, pid).State.Running.StartedAt = metav1.NewTime(n.tools.Host.Clock().Wall.Add(time.Hour))
		}, "was started -1h0m0s ago"},
		"it does not run": {func(n *containerNode, p *corev1.Pod, _ *cri.Container, pid int) {
			n.status(p, pid).State = corev1.ContainerState{}
		}, ""}, // each action words this itself
		"the agent's own cgroup is not known": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, _ int) {
			if err := os.Remove(n.tools.Host.Files.Path("/proc/self/cgroup")); err != nil {
				n.t.Fatal(err)
			}
		}, "the agent's own cgroup"},
		"kubelet is down": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, _ int) {
			n.tools.Host.Kubelet.Healthz = hosttest.Answer("", errOutage)
		}, "kubelet does not answer"},
		"kubelet's pods are not known": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, _ int) {
			n.tools.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod(nil), errOutage)
		}, "pods of this node: no answer"},
		"kubelet does not let the agent in, and the apiserver is away": {func(n *containerNode, _ *corev1.Pod,
			_ *cri.Container, _ int) {
			n.tools.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod(nil), fs.ErrPermission)
			n.tools.Host.Cluster.Pods = hosttest.Answer([]corev1.Pod(nil), errOutage)
		}, "pods of this node: no answer"},
		"the runtime hangs": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, _ int) {
			n.tools.Host.Runtime.Containers = hosttest.Answer([]*cri.Container(nil), context.DeadlineExceeded)
		}, "containers of the runtime: context deadline exceeded"},
		"another container in the runtime": {func(_ *containerNode, _ *corev1.Pod, c *cri.Container, _ int) {
			c.Id = strings.Repeat("e", 64)
		}, "the runtime has 1 running"},
		"two in the runtime": {func(n *containerNode, _ *corev1.Pod, c *cri.Container, _ int) {
			n.containers = append(n.containers, &cri.Container{Id: strings.Repeat("e", 64), State: c.State, Labels: c.Labels})
		}, "the runtime has 2 running"},
		"it has ended": {func(_ *containerNode, _ *corev1.Pod, c *cri.Container, _ int) {
			c.State = cri.ContainerState_CONTAINER_EXITED
		}, "the runtime has 0 running"},
		"no process": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			n.write(fmt.Sprintf("/proc/%d/cgroup", pid), "0::/elsewhere\n")
		}, ""},
		"a static pod": {func(_ *containerNode, p *corev1.Pod, _ *cri.Container, _ int) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		}, "is of a static pod"},
		"a mirror": {func(_ *containerNode, p *corev1.Pod, c *cri.Container, _ int) {
			p.Annotations = map[string]string{"kubernetes.io/config.mirror": c.Labels["io.kubernetes.pod.uid"]}
		}, "is of a static pod"},
		"its pod ends": {func(_ *containerNode, p *corev1.Pod, _ *cri.Container, _ int) {
			p.DeletionTimestamp = &metav1.Time{}
		}, "ends"},
		"it would not come back": {func(_ *containerNode, p *corev1.Pod, _ *cri.Container, _ int) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}, "would not be started again"},
		"the agent": {func(n *containerNode, p *corev1.Pod, _ *cri.Container, _ int) {
			n.write("/proc/self/cgroup", fmt.Sprintf("0::/kubepods/burstable/pod%s/%s\n", p.UID, strings.Repeat("d", 64)))
		}, "the agent itself runs in pod"},
		"kubelet": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			n.tools.Host.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: pid}, nil }
		}, "kubelet or the runtime runs in"},
		"the runtime": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, pid int) {
			n.tools.Host.Runtime.Process = hosttest.Answer(host.Process{PID: pid}, nil)
		}, "kubelet or the runtime runs in"},
		"kubelet's process is not known": {func(n *containerNode, _ *corev1.Pod, _ *cri.Container, _ int) {
			n.tools.Host.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errOutage }
		}, "the process of kubelet: no answer"},
	} {
		for about, of := range map[string]struct {
			pid     int
			prepare func(n *containerNode)
		}{
			"registrar": {31, (*containerNode).aboutDriver},
			"driver":    {30, func(n *containerNode) { n.action = restartDriver() }},
			"DaemonSet": {50, (*containerNode).aboutDaemonSet},
		} {
			t.Run(name+", "+about, func(t *testing.T) {
				n := newContainerNode(t)
				of.prepare(n)
				p, c := n.containerAt(of.pid)
				test.change(n, p, c, of.pid)
				if test.want == "" && name != "nothing is against it" {
					if job, refused := n.look(); refused == "" {
						t.Errorf("%+v", job)
					}
					return
				}
				n.expect(of.pid, test.want)
			})
		}
	}
}

// While kubelet's back-off delays a restart, the container is left to kubelet, which reports why.
func TestContainerInBackOff(t *testing.T) {
	n := newContainerNode(t)
	n.silence(1031)
	n.status(n.pods[0], 31).State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "CrashLoopBackOff"}}
	n.expect(31, "kubelet is about to start container registrar of pod kube-system/csi-a-x7k2p: CrashLoopBackOff")
}

// containerAt returns the container of a process.
func (n *containerNode) containerAt(pid int) (*corev1.Pod, *cri.Container) {
	n.t.Helper()
	for _, c := range n.containers {
		for _, p := range n.pods {
			if c.Id == containerID(pid) && c.Labels["io.kubernetes.pod.uid"] == string(p.UID) {
				return p, c
			}
		}
	}
	n.t.Fatalf("no container of process %d", pid)
	return nil, nil
}

func (n *containerNode) status(p *corev1.Pod, pid int) *corev1.ContainerStatus {
	n.t.Helper()
	for i := range p.Status.ContainerStatuses {
		if strings.HasSuffix(p.Status.ContainerStatuses[i].ContainerID, containerID(pid)) {
			return &p.Status.ContainerStatuses[i]
		}
	}
	n.t.Fatalf("no status of the container of process %d", pid)
	return nil
}

// The action acts only if it can prove which container is the registrar.
func TestRegistrarIsProven(t *testing.T) {
	socketOfA := registry + "/" + driverName + "-reg.sock"
	for name, test := range map[string]struct {
		change func(n *containerNode, a, b *corev1.Pod)
		want   string
	}{
		"by its image": {func(n *containerNode, _, _ *corev1.Pod) { n.silence(1031) }, ""},
		"by its program": {func(n *containerNode, a, _ *corev1.Pod) {
			n.silence(1031)
			a.Spec.Containers[1].Image = "mirror.example.com/r:2"
		}, ""},
		"by its socket": {func(n *containerNode, a, _ *corev1.Pod) {
			a.Spec.Containers[1].Image = "mirror.example.com/r:2"
			n.process(31, "r", fmt.Sprintf("0::/kubepods/burstable/pod%s/%s\n", a.UID, containerID(31)))
		}, ""},
		"by nothing": {func(n *containerNode, a, _ *corev1.Pod) {
			n.silence(1031)
			a.Spec.Containers[1].Image = "mirror.example.com/r:2"
			n.process(31, "r", fmt.Sprintf("0::/kubepods/burstable/pod%s/%s\n", a.UID, containerID(31)))
		}, "no container on this node is proven"},
		"the socket is missing": {func(n *containerNode, _, _ *corev1.Pod) {
			n.silence(1031)
			n.finding.Reason, n.finding.Facts = "CSISocketMissing", nil
		}, ""},
		"the driver does not answer": {func(n *containerNode, _, _ *corev1.Pod) { delete(n.names, endpointOf) }, ""},
		"another driver answers": {func(n *containerNode, _, _ *corev1.Pod) { n.names[endpointOf] = otherDriver },
			"no container on this node is proven"},
		"its folder has another name": {func(n *containerNode, a, _ *corev1.Pod) {
			a.Spec.Containers[1].Args = []string{"--kubelet-registration-path=/var/lib/kubelet/plugins/a/csi.sock"}
			n.names["/var/lib/kubelet/plugins/a/csi.sock"] = driverName
		}, ""},
		"its folder has another name, and nobody answers": {func(_ *containerNode, a, _ *corev1.Pod) {
			a.Spec.Containers[1].Args = []string{"--kubelet-registration-path=/var/lib/kubelet/plugins/a/csi.sock"}
		}, "no container on this node is proven"},
		"two of them": {func(n *containerNode, _, b *corev1.Pod) { n.registers(b, 1, driverName) }, "both seem to be"},
		"no registry": {func(_ *containerNode, a, _ *corev1.Pod) { a.Spec.Containers[1].VolumeMounts = nil },
			"no container on this node is proven"},
		"another's folder": {func(_ *containerNode, a, _ *corev1.Pod) { a.Spec.Volumes[0].HostPath.Path = "/tmp" },
			"no container on this node is proven"},
		"no such argument": {func(_ *containerNode, a, _ *corev1.Pod) { a.Spec.Containers[1].Args = nil },
			"no container on this node is proven"},
		"another process has its socket": {func(n *containerNode, _, _ *corev1.Pod) {
			n.silence(1031)
			n.listens(40, 2040, socketOfA)
		}, "process 40 listens on " + socketOfA + ", and is not in"},
		"nobody is known to have its socket": {func(n *containerNode, _, _ *corev1.Pod) {
			n.silence(1031)
			n.process(99, "x", "0::/\n")
			n.listens(99, 2099, socketOfA)
			n.silenceHolder(99, 2099)
		}, "process 0 listens on"},
		"it has another's socket too": {func(n *containerNode, _, _ *corev1.Pod) {
			n.listens(31, 2031, registry+"/c.csi.example.com-reg.sock")
		}, "also listens on " + registry + "/c.csi.example.com-reg.sock"},
		"registrar and driver in one": {func(n *containerNode, _, _ *corev1.Pod) {
			n.silence(1030)
			n.listens(31, 2031, endpointOf)
		}, "is registrar and driver in one"},
		"no name": {func(n *containerNode, _, _ *corev1.Pod) {
			n.finding.Subject = finding.Subject{Kind: "plugin-socket", Name: socketOfA}
		}, "the name of the driver is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerNode(t)
			test.change(n, n.pods[0], n.pods[1])
			n.expect(31, test.want)
		})
	}
}

// silence removes a listening socket.
func (n *containerNode) silence(inode int) {
	var kept strings.Builder
	for line := range strings.Lines(n.unix.String()) {
		if !strings.Contains(line, fmt.Sprintf(" %d /", inode)) {
			kept.WriteString(line)
		}
	}
	n.unix = strings.Builder{}
	n.unix.WriteString(kept.String())
	for _, p := range []int{30, 31, 40, 41} {
		n.write(fmt.Sprintf("/proc/%d/net/unix", p), "Num RefCount Protocol Flags Type St Inode Path\n"+kept.String())
	}
}

// silenceHolder makes a socket one without a known holder.
func (n *containerNode) silenceHolder(pid, inode int) {
	for _, dir := range []string{fmt.Sprintf("/proc/%d/fd/%d", pid, inode), fmt.Sprintf("/proc/%d/task/%[1]d/fd/%d", pid,
		inode)} {
		if err := os.Remove(n.tools.Host.Files.Path(dir)); err != nil {
			n.t.Fatal(err)
		}
	}
}

// The driver itself is ended only if the node has no volume of it.
func TestDriverWithoutVolumes(t *testing.T) {
	note := func(driver string) string {
		return fmt.Sprintf(`{"driverName":%q,"volumeHandle":"h","specVolID":"pv"}`, driver)
	}
	const published = kubeletRoot + "/pods/1d4a7c1e-5a52-4c4b-9a3f-2f6a0d7d9c11/volumes/kubernetes.io~csi/pv/vol_data.json"
	const staged = kubeletRoot + "/plugins/kubernetes.io/csi/"
	for name, test := range map[string]struct {
		change func(n *containerNode)
		want   string
	}{
		"published":             {func(n *containerNode) { n.write(published, note(driverName)) }, "are published to 1 pods"},
		"published in capitals": {func(n *containerNode) { n.write(published, note("A.csi.example.COM")) }, "are published"},
		"another's":             {func(n *containerNode) { n.write(published, note(otherDriver)) }, ""},
		"whose it is is not known": {func(n *containerNode) { n.write(published, "{") },
			"cannot tell which drivers the volumes of all pods belong to"},
		"staged": {func(n *containerNode) {
			n.write(staged+driverName+"/"+strings.Repeat("a", 64)+"/vol_data.json", note(driverName))
		}, "a volume of a.csi.example.com is staged in"},
		"staged by another": {func(n *containerNode) {
			n.write(staged+otherDriver+"/"+strings.Repeat("a", 64)+"/vol_data.json", note(otherDriver))
		}, ""},
		"staged, by nobody knows whom": {func(n *containerNode) {
			n.write(staged+otherDriver+"/"+strings.Repeat("a", 64)+"/vol_data.json", "{")
		}, "cannot tell which driver "},
		"a raw block volume": {func(n *containerNode) {
			n.write(staged+"volumeDevices/pv/data/vol_data.json", note(driverName))
		}, "is staged in"},
		"nobody listens on its socket": {func(n *containerNode) { n.silence(1030) }, "0 containers listen on"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerNode(t)
			n.action = restartDriver()
			test.change(n)
			n.expect(30, test.want)
		})
	}
	t.Run("a pod comes after the look", func(t *testing.T) {
		n := newContainerNode(t)
		n.action = restartDriver()
		job, _ := n.look()
		n.write(published, note(driverName))
		if _, err := job.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "are published") {
			t.Errorf("%v", err)
		}
	})
}
