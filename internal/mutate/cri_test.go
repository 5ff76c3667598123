package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestCRI(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket = c.Socket })
	uid, other := mutatetest.UID(t), mutatetest.UID(t)
	n.Cgroups(uid, "")
	n.Cgroups(other, "")
	parent := n.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod"
	s, living := c.Sandbox(uid, parent+uid, false), c.Sandbox(other, parent+other, false)
	app := c.Container(s, parent+uid)
	sandbox := mutate.RuntimeObject{ID: s.Id, CreatedAt: s.CreatedAt}
	container := mutate.RuntimeObject{ID: app.Id, CreatedAt: app.CreatedAt}
	ctx := t.Context()

	var refusal mutate.Refusal
	again := sandbox
	again.CreatedAt++
	if err := n.Mutator.StopSandbox(ctx, again); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("another sandbox: %v", err)
	}
	if err := n.Mutator.StopSandbox(ctx, mutate.RuntimeObject{ID: s.Id[:12], CreatedAt: s.CreatedAt}); !errors.As(err,
		&refusal) {
		t.Errorf("an abbreviated ID: %v", err)
	}
	if err := n.Mutator.RemoveSandbox(ctx, sandbox); !errors.As(err, &refusal) {
		t.Errorf("a ready sandbox: %v", err)
	}
	if err := n.Mutator.RemoveContainer(ctx, container); !errors.As(err, &refusal) {
		t.Errorf("a running container: %v", err)
	}
	for range 2 { // the second time all is done or gone
		if err := n.Mutator.StopContainer(ctx, container, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := n.Mutator.RemoveContainer(ctx, container); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := n.Mutator.StopSandbox(ctx, sandbox); err != nil {
			t.Fatal(err)
		}
		if err := n.Mutator.RemoveSandbox(ctx, sandbox); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.Client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Id != living.Id ||
		list.Items[0].State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("sandboxes: %v", list.Items)
	}
}

// A sandbox whose network cannot be taken down stays, and the plugin's error is returned.
func TestStopSandboxCNIFails(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	plugin := filepath.Join(c.BinDir, "moody")
	mood := filepath.Join(c.Dir, "mood")
	script := `#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}' && exit 0
[ "$CNI_COMMAND" = DEL ] && [ ! -e ` + mood + ` ] && echo '{"cniVersion":"0.4.0","code":100,"msg":"the agent is down"}' && exit 1
echo '{"cniVersion":"0.4.0","interfaces":[],"ips":[{"version":"4","address":"10.205.0.2/24"}]}'
`
	if err := executable.Write(plugin, []byte(script)); err != nil {
		t.Fatal(err)
	}
	loopback, err := os.ReadFile("/usr/lib/cni/loopback")
	need.Kernel(t, "the CNI plugins", err)
	if err := executable.Write(filepath.Join(c.BinDir, "loopback"), loopback); err != nil {
		t.Fatal(err)
	}
	conf := `{"cniVersion":"0.4.0","name":"moody` + mutatetest.Hex(t, 6) + `","plugins":[{"type":"moody"}]}`
	if err := os.WriteFile(filepath.Join(c.ConfDir, "10-moody.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	waitNetwork(t, c)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket = c.Socket })
	uid := mutatetest.UID(t)
	n.Cgroups(uid, "")
	s := c.Sandbox(uid, n.Host.Paths.CgroupRoot+"/kubepods/besteffort/pod"+uid, true)
	sandbox := mutate.RuntimeObject{ID: s.Id, CreatedAt: s.CreatedAt}
	t.Cleanup(func() { os.WriteFile(mood, nil, 0o644) })
	if err := n.Mutator.StopSandbox(t.Context(), sandbox); err == nil ||
		!strings.Contains(err.Error(), "the agent is down") {
		t.Errorf("got %v, want the plugin's words", err)
	}
	if err := os.WriteFile(mood, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.StopSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	if err := n.Mutator.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
}

// waitNetwork waits until the runtime has read the CNI configuration.
func waitNetwork(t *testing.T, c *mutatetest.Containerd) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := c.Client.Status(t.Context(), &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, condition := range answer.Status.Conditions {
			if condition.Type == cri.NetworkReady && condition.Status {
				return
			}
		}
		select {
		case <-deadline:
			t.Fatal("the network does not become ready")
		case <-tick.C:
		}
	}
}
