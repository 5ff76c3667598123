package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	detectcri "github.com/nodeagent/nodeagent/pkg/detect/cri"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/kubelethealth"
)

// The real kubelet and the real runtime are healthy, are reported while they are stopped, and are healthy again. Each
// is stopped for only a second.
func TestKubeletAndRuntimeHealth(t *testing.T) {
	c := openCSILab(t) // only for its host; no driver is started
	c.host.Paths.KubeletHealthz = fmt.Sprintf("http://127.0.0.1:%d/healthz", c.lab.KubeletHealthPort())
	c.host.Paths.CRISocket = c.lab.Paths.CRISocket
	c.host.Kubelet = kube.NewKubelet(kube.Config{Node: c.lab.NodeName, Kubeconfig: c.lab.Paths.AdminKubeconfig},
		host.Files{}, c.host.Paths)
	pid, err := c.lab.PID("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.host.Kubelet.Process(); err != nil || p.PID != pid {
		t.Fatalf("the client finds kubelet %+v, %v; it is %d", p, err, pid)
	}
	runtime, closer, err := cri.NewRuntime(c.lab.Paths.CRISocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	c.host.Runtime = runtime
	c.host.Plugins = kubelet.NewPlugins(c.lab.Paths.KubeletRoot, c.lab.Dir)

	kubelet, cri := kubelethealth.DefaultSettings(), detectcri.DefaultRuntimeHealthSettings()
	kubelet.Timeout, cri.Timeout = time.Second, time.Second
	for _, tt := range []struct {
		component, reason string
		check             detect.Check
	}{
		{"kubelet", "KubeletStopped", kubelethealth.New(kubelet)},
		{"containerd", "RuntimeStopped", detectcri.RuntimeHealth(cri)},
	} {
		expect := func(want ...string) {
			t.Helper()
			found, err := tt.check.Run(t.Context(), c.host)
			var got []string
			for _, f := range found {
				got = append(got, f.Reason)
				t.Log(f.Message, f.Facts)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: error %v (-want +got):\n%s", tt.component, err, diff)
			}
		}
		expect()
		if err := c.lab.Signal(tt.component, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		resume := func() { _ = c.lab.Signal(tt.component, syscall.SIGCONT) }
		guard := context.AfterFunc(t.Context(), resume)
		c.awaitStopped(t, tt.component)
		expect(tt.reason)
		guard()
		resume()
		expect()
	}
}

// awaitStopped waits until all threads of a component have stopped: a thread on another processor continues for a
// moment, and answers.
func (c *csiLab) awaitStopped(t *testing.T, component string) {
	t.Helper()
	pid, err := c.lab.PID(component)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		tids, err := c.host.TIDs(pid)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(tids, func(tid int) bool {
			stat, err := c.host.TaskStat(pid, tid)
			return err == nil && stat.State != 'T'
		}) {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s (process %d) does not stop", component, pid)
}
