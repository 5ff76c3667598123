package repair

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// realContainers is a node with a real containerd; kubelet's list is made from its containers.
type realContainers struct {
	*mutatetest.Node
	containerd *mutatetest.Containerd
	sandbox    *criapi.PodSandbox
	parent     string
	pod        corev1.Pod
	tools      Tools
}

func newRealContainers(t *testing.T) *realContainers {
	t.Helper()
	c := mutatetest.StartContainerd(t)
	r := &realContainers{containerd: c, Node: mutatetest.New(t, func(p *host.Paths) { p.CRISocket = c.Socket })}
	uid := mutatetest.UID(t)
	r.Cgroups(uid, "")
	r.parent = r.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	r.sandbox = c.Sandbox(uid, r.parent, false)
	yes := true
	r.pod = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent-x7k2p", UID: types.UID(uid),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent",
				Controller: &yes}}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: new(int64)},
	}
	runtime, closer, err := cri.NewRuntime(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	r.Host.Runtime, r.Host.Kubelet = runtime, hosttest.Kubelet()
	r.Host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return []corev1.Pod{r.pod}, nil }
	settings := Defaults()
	settings.DaemonSets, settings.UnitAge = []string{"default/agent"}, 0
	r.tools = Tools{Mutator: r.Mutator, Host: r.Host, Settings: settings, Log: slog.New(slog.DiscardHandler)}
	return r
}

// run starts a container of the pod.
func (r *realContainers) run(name string, set ...func(*criapi.ContainerConfig)) *criapi.Container {
	c := r.containerd.Container(r.sandbox, r.parent, append([]func(*criapi.ContainerConfig){
		func(config *criapi.ContainerConfig) {
			config.Metadata.Name, config.Labels["io.kubernetes.container.name"] = name, name
		}}, set...)...)
	r.pod.Spec.Containers = append(r.pod.Spec.Containers, corev1.Container{Name: name})
	r.pod.Status.ContainerStatuses = append(r.pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name,
		ContainerID: "containerd://" + c.Id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
			StartedAt: metav1.NewTime(time.Unix(0, c.CreatedAt))}}})
	return c
}

// look has the action look at a container that hangs.
func (r *realContainers) look(t *testing.T, c *criapi.Container) (Job, error) {
	t.Helper()
	return examineDaemonSet(t.Context(), r.tools, finding.Finding{Check: "daemonset-hang", Reason: "DaemonSetPodNotAnswering",
		Subject: finding.Subject{Kind: "daemonset", Name: "default/agent"}, Facts: map[string]string{"containerID": c.Id}})
}

func (r *realContainers) state(t *testing.T, c *criapi.Container) criapi.ContainerState {
	t.Helper()
	answer, err := r.containerd.Client.ContainerStatus(t.Context(), &criapi.ContainerStatusRequest{ContainerId: c.Id})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.State
}

// join moves a process into the cgroups of a container.
func (r *realContainers) join(t *testing.T, pid int, c *criapi.Container) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(r.Host.Paths.CgroupMount, "*", r.parent, c.Id))
	unified, _ := filepath.Glob(filepath.Join(r.Host.Paths.CgroupMount, r.parent, c.Id))
	if dirs = append(dirs, unified...); err != nil || len(dirs) == 0 {
		t.Fatalf("no cgroup of %s: %v", c.Id, err)
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// With a real runtime, only the one container ends. A FUSE server in its cgroup, a restart between look and step, and a
// hanging runtime prevent it; if a process hangs in the kernel, the result says that it did not end.
func TestRealContainerd(t *testing.T) {
	r := newRealContainers(t)
	app, beside := r.run("app"), r.run("beside")
	const running, exited = criapi.ContainerState_CONTAINER_RUNNING, criapi.ContainerState_CONTAINER_EXITED

	t.Run("FUSE", func(t *testing.T) {
		device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		need.Kernel(t, "/dev/fuse", err)
		defer device.Close()
		job, err := r.look(t, app)
		if err != nil {
			t.Fatal(err)
		}
		server := exec.Command(need.Program(t, "sleep"), "1000")
		server.ExtraFiles = []*os.File{device}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
		r.join(t, server.Process.Pid, app)
		if _, err := r.look(t, app); err == nil || !strings.Contains(err.Error(), "(sleep) of container app") ||
			!strings.Contains(err.Error(), "holds /dev/fuse") {
			t.Errorf("look: %v", err)
		}
		if _, err := job.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "holds /dev/fuse") ||
			r.state(t, app) != running { // it was started after that look
			t.Errorf("step: %v, %s", err, r.state(t, app))
		}
	})
	t.Run("the runtime hangs", func(t *testing.T) {
		job, err := r.look(t, app)
		if err != nil {
			t.Fatal(err)
		}
		r.containerd.Signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, lookErr := examineDaemonSet(ctx, r.tools, finding.Finding{Subject: finding.Subject{Name: "default/agent"},
			Facts: map[string]string{"containerID": app.Id}})
		_, doErr := job.Do(ctx)
		r.containerd.Signal(syscall.SIGCONT)
		if lookErr == nil || doErr == nil || r.state(t, app) != running {
			t.Errorf("look: %v, step: %v", lookErr, doErr)
		}
	})
	t.Run("it is ended", func(t *testing.T) {
		job, err := r.look(t, app)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Do(t.Context()); err != nil || r.state(t, app) != exited || r.state(t, beside) != running {
			t.Errorf("%v: %s, and the one beside it %s", err, r.state(t, app), r.state(t, beside))
		}
		if _, err := job.Do(t.Context()); err == nil || !strings.Contains(err.Error(), mutate.ErrChanged.Error()) {
			t.Errorf("again, after it has ended: %v", err)
		}
	})
	t.Run("it hangs in the kernel", func(t *testing.T) {
		hung := hosttest.HangingFUSE(t)
		stuck := r.run("stuck", func(config *criapi.ContainerConfig) {
			config.Mounts = []*criapi.Mount{{HostPath: filepath.Dir(hung), ContainerPath: "/x"}}
			config.Command, config.Args = []string{"/busybox"}, []string{"ls", "/x/" + filepath.Base(hung) + "/file"}
		})
		r.awaitHang(t, stuck.Id)
		job, err := r.look(t, stuck)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = job.Do(ctx)
		for _, want := range []string{"not done, because container " + stuck.Id + " still runs", "(busybox)", "state D"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

// awaitHang waits until the main process of a container waits for a filesystem.
func (r *realContainers) awaitHang(t *testing.T, id string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for where := ""; !strings.Contains(where, "request_wait_answer"); {
		select {
		case <-deadline:
			t.Fatalf("it waits in %q", where)
		case <-tick.C:
		}
		processes, err := r.Host.ContainerProcesses(id)
		if err != nil {
			t.Fatal(err)
		}
		if main, ok := host.MainProcess(processes); ok {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", main.PID))
			where = string(data)
		}
	}
}
