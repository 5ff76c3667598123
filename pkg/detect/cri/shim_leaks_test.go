package cri

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A container that containerd knows is no leak, also before CRI knows it.
func TestShimLeaksContainerd(t *testing.T) {
	shims := []runningShim{{Shim: hostcri.Shim{ID: "a"}}, {Shim: hostcri.Shim{ID: "b"}}, {Shim: hostcri.Shim{ID: "c"}}}
	h := &host.Host{Runtime: hosttest.Runtime(), Containerd: hosttest.Containerd()}
	h.Containerd.Containers = hosttest.Answer([]containers.Container{{ID: "a"}}, nil)
	h.Containerd.Leases = hosttest.Answer([]leases.Lease{{ID: "b"}}, nil)
	got, err := knownToRuntime(t.Context(), h, shims)
	if diff := cmp.Diff(map[string]idState{"a": idKnown, "b": idKnown}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, bend := range []func(){
		func() { h.Containerd.Leases = hosttest.Hang[[]leases.Lease] },
		func() { h.Containerd.Containers = hosttest.Hang[[]containers.Container] },
	} {
		bend()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if got, err := knownToRuntime(ctx, h, shims); err == nil {
			t.Errorf("a list that was not answered: %v", got)
		}
		cancel()
	}
}

// A real shim, of a sandbox that one real containerd knows and another does not, until the sandbox is removed.
func TestShimLeaksReal(t *testing.T) {
	node := mutatetest.New(t)
	owner, other := mutatetest.StartContainerd(t), mutatetest.StartContainerd(t)
	uid := mutatetest.UID(t)
	node.Cgroups(uid, "")
	sandbox := owner.Sandbox(uid, node.Host.Paths.CgroupRoot+"/kubepods/besteffort/pod"+uid, false)
	find := func(c *mutatetest.Containerd) []string {
		t.Helper()
		var of []string
		for _, f := range findShims(t, c.Socket) {
			if f.Subject.Name == sandbox.Id {
				of = append(of, f.Reason+" "+f.Facts["processesBelow"])
				t.Log(f.Message)
			}
		}
		return of
	}
	if got := find(owner); got != nil {
		t.Errorf("asked of its own containerd: %v", got)
	}
	if diff := cmp.Diff([]string{"ShimWithoutContainer 1"}, find(other)); diff != "" {
		t.Errorf("asked of another (-want +got):\n%s", diff)
	}
	if _, err := owner.Client.StopPodSandbox(t.Context(),
		&cri.StopPodSandboxRequest{PodSandboxId: sandbox.Id}); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Client.RemovePodSandbox(t.Context(),
		&cri.RemovePodSandboxRequest{PodSandboxId: sandbox.Id}); err != nil {
		t.Fatal(err)
	}
	if got := find(other); got != nil {
		t.Errorf("after its end: %v", got)
	}
}

// findShims runs the check once, an hour from now, with the containerd on socket as the node's.
func findShims(t *testing.T, socket string) []finding.Finding {
	t.Helper()
	runtime, closer, err := hostcri.NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	below, belowCloser, err := hostcri.NewContainerd(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer belowCloser.Close()
	h := &host.Host{NodeName: "node-1", Runtime: runtime, Containerd: below, Clock: func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot += time.Hour
		return now
	}}
	found, err := ShimLeaks().Run(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A runtime that accepts the call and never answers costs five seconds, and proves nothing.
func TestShimLeaksRuntimeHangs(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/100/stat":    "100 (containerd-shim) S 1 100 100 0 -1 1077936384 1 0 0 0 10 10 0 0 20 0 20 0 300 1 1\n",
		"proc/100/cmdline": "/usr/bin/containerd-shim-runc-v2\x00-namespace\x00k8s.io\x00-id\x00a\x00",
	} {
		checktest.WriteFile(t, root, txtar.File{Name: name, Data: []byte(text)})
	}
	synctest.Test(t, func(t *testing.T) {
		h := &host.Host{Files: host.Files{Root: root}, Runtime: hosttest.Runtime(), Clock: hosttest.Clock}
		h.Runtime.Sandboxes = hosttest.Hang[[]*cri.PodSandbox]
		began := time.Now()
		found, err := ShimLeaks().Run(t.Context(), h)
		if took := time.Since(began); took != shimLeakTimeout || !errors.Is(err, context.DeadlineExceeded) ||
			found != nil {
			t.Errorf("after %s: %v, %v", took, found, err)
		}
	})
}
