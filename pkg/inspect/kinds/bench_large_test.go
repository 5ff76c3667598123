package kinds_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// BenchmarkLargeNode inspects fake nodes, whose files are in a fixture: how the cost grows with mounts and cgroups. It
// excludes the kernel's time to list them; BenchmarkPass includes it. Leftover cgroups belong to unknown pods, so that
// each of them is examined.
func BenchmarkLargeNode(b *testing.B) {
	for _, size := range []struct{ pods, mounts, cgroups, left int }{
		{100, 2000, 1500, 0}, {100, 5000, 1500, 0}, {100, 2000, 1500, 7500}, {100, 2000, 1500, 15000},
		{100, 2000, 1500, 30000}, {100, 2000, 1500, 60000},
	} {
		b.Run(fmt.Sprintf("%d-mounts-%d-cgroups-%d-left", size.mounts, size.cgroups, size.left), func(b *testing.B) {
			h := largeNode(b, size.pods, size.mounts, size.cgroups, size.left)
			i := inspect.New(h, object.DefaultSettings(), slog.New(slog.DiscardHandler))
			var report object.Report
			history := object.History{}
			report, history = i.Pass(b.Context(), history)
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				report, history = i.Pass(b.Context(), history)
			}
			b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(len(report.Objects)), "objects")
			runtime.KeepAlive(history)
		})
	}
}

func largeNode(b *testing.B, pods, mounts, cgroups, left int) *host.Host {
	b.Helper()
	var kubelet []corev1.Pod
	var sandboxes []*cri.PodSandbox
	var containers []*cri.Container
	h := hosttest.Host(b, func(h *host.Host) {
		h.Mounts, h.Processes = &mountinfo.Reader{}, host.NewProcesses()
		h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return kubelet, nil }
		h.Cluster.Pods = h.Kubelet.Pods
		h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) { return sandboxes, nil }
		h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return containers, nil }
	})
	write := func(name, text string) {
		file := h.Files.Path(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	mkdir := func(name string) {
		if err := os.MkdirAll(h.Files.Path(name), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	write("etc/machine-id", hosttest.MachineID)
	write("proc/sys/kernel/random/boot_id", hosttest.BootID)
	table := []string{"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard",
		"30 27 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"}
	const kubepods = "/sys/fs/cgroup/kubepods/burstable/"
	for p := range pods {
		uid := fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", p)
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default",
			Name: fmt.Sprint("pod-", p)}}
		pod.Spec.NodeName, pod.Status.Phase = hosttest.NodeName, corev1.PodRunning
		kubelet = append(kubelet, pod)
		meta := &cri.PodSandboxMetadata{Uid: uid, Namespace: "default", Name: pod.Name}
		sandbox := fmt.Sprintf("%064x", p<<8)
		sandboxes = append(sandboxes, &cri.PodSandbox{Id: sandbox, Metadata: meta, State: cri.PodSandboxState_SANDBOX_READY})
		for m := range mounts / pods {
			table = append(table, fmt.Sprintf("%d 27 0:%d / /var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/v%d "+
				"rw,relatime shared:%d - tmpfs tmpfs rw,size=24684564k", 100+len(table), 40+len(table), uid, m, 100+len(table)))
		}
		mkdir("/var/lib/kubelet/pods/" + uid + "/volumes")
		for c := range cgroups/pods - 1 {
			id := fmt.Sprintf("%064x", p<<8+c)
			if c > 0 && c < 4 {
				containers = append(containers, &cri.Container{Id: id, PodSandboxId: sandbox,
					Labels: map[string]string{"io.kubernetes.pod.uid": uid}, State: cri.ContainerState_CONTAINER_RUNNING})
			}
			if c >= 4 {
				id = fmt.Sprintf("%064x/below-%d", p<<8+1, c)
			}
			mkdir(kubepods + "pod" + uid + "/" + id)
			pid := 1000 + p*100 + c
			write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (sleep) S 1 %[1]d %[1]d 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 "+
				"8640000 1000 100 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n", pid))
			write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/kubepods/burstable/pod"+uid+"/"+id+"\n")
		}
	}
	for l := range left {
		mkdir(fmt.Sprintf("%spod%08d-0000-4000-8000-%012d/%064x", kubepods, l/4, 1, l))
	}
	write("proc/1/mountinfo", strings.Join(table, "\n")+"\n")
	return h
}
