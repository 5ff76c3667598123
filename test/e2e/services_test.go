package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	detectcri "github.com/nodeagent/nodeagent/pkg/detect/cri"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

// A containerd stopped for some seconds from time to time answers late, by kubelet's own metrics. It is not a restart.
func TestRuntimeLatency(t *testing.T) {
	need.Flag(t, *long, "-long: the runtime is stopped ten times for four seconds, with nothing beside it")
	k := openKubeletLab(t)
	check, restarts := detectcri.RuntimeLatency(), detectcri.RuntimeRestarts(nil)
	k.await(check, map[string]string{"runtime-calls/questions": "", "runtime-calls/work": ""})
	k.observe(restarts)
	resume := func() { _ = k.lab.Signal("containerd", syscall.SIGCONT) }
	t.Cleanup(resume)
	began := time.Now()
	err := harness.WaitFor(t.Context(), "RuntimeQuestionsSlow", func() error {
		if err := k.lab.Signal("containerd", syscall.SIGSTOP); err != nil {
			return err
		}
		<-time.After(4 * time.Second)
		resume()
		<-time.After(time.Second)
		f, there := k.observe(check)["runtime-calls/questions"]
		if !there || f.BelowRaise {
			return fmt.Errorf("%v: %s", there, f.Message)
		}
		t.Logf("after %s: %s %v", time.Since(began).Round(time.Second), f.Message, f.Facts)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.await(restarts, map[string]string{"container-runtime/" + k.host.Paths.CRISocket: ""})
}

// The shims of running pods are not leaked, however old they are.
func TestShimsOfLivingPods(t *testing.T) {
	k := openKubeletLab(t)
	if err := k.lab.KubectlApply(t.Context(), fmt.Sprintf(stuckManifest, "shim-living", "localhost/busybox:1", "",
		"")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = k.lab.Kubectl(context.WithoutCancel(t.Context()), "delete", "pod", "shim-living", "--wait=false")
	})
	pod, err := k.lab.WaitPodRunning(t.Context(), "default", "shim-living")
	if err != nil {
		t.Fatal(err)
	}
	k.host.Clock = func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot += time.Hour
		return now
	}
	if found := k.observe(detectcri.ShimLeaks()); len(found) > 0 {
		t.Errorf("%v", found)
	}
	// With a runtime that lists no pods, the finding proves that the check has examined the shim.
	k.host.Runtime.Sandboxes, k.host.Runtime.Containers = nothing[*cri.PodSandbox], nothing[*cri.Container]
	found := k.observe(detectcri.ShimLeaks())
	of := 0
	for _, f := range found {
		t.Log(f.Message, f.Facts)
		if f.Facts["processesBelow"] != "0" && strings.Contains(f.Facts["pods"], "shim-living") {
			of++
		}
	}
	if of != 1 {
		t.Errorf("%d shims of pod %s are reported", of, pod.UID)
	}
}

func nothing[T any](context.Context) ([]T, error) { return nil, nil }
