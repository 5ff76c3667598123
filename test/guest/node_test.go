package guest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestNode runs tests of test/e2e on a node of today: cgroup v2 alone, systemd as init and for the cgroups of pods,
// containerd 2. Its control plane is on this machine.
func TestNode(t *testing.T) {
	need.Flag(t, *withGuest, "-guest: boots a machine of its own")
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	for name, tags := range map[string][]string{"agent": nil, "faultpoints-agent": {"faultpoints"}} {
		if _, err := harness.Build(ctx, filepath.Join(dir, name), tags...); err != nil {
			t.Fatal(err)
		}
	}
	build(t, repo, "go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "e2e.test"),
		"./test/e2e")
	plane, err := lab.UpControlPlane(ctx, lab.Options{Dir: filepath.Join(dir, "plane"), NodeName: "lab-node",
		Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.End(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	g := Guest{Cache: filepath.Join(repo, ".cache"), Dir: dir, Output: os.Stdout, Systemd: true, Node: true}
	args := []string{"/usr/bin/env", "-C", filepath.Join(repo, "test/e2e"), filepath.Join(dir, "e2e.test"), "-test.v", "-test.timeout=24m", "-test.run",
		os.Getenv("GUEST_RUN"), "-lab", "-containerd=2", "-join", plane.Dir, "-agents", dir}
	code, err := g.Run(ctx, args...)
	t.Log(code, err)
}
