package guest

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// onNode are the tests of test/e2e that run on a modern node.
const onNode = "TestSystemd"

// TestNode runs tests of test/e2e on a node like most today: cgroup v2 alone, systemd as init and for the cgroups of
// pods, containerd 2. Its control plane is on this machine, which is not emulated.
func TestNode(t *testing.T) {
	need.Flag(t, *withGuest, "-guest: boots a machine of its own")
	tests := cmp.Or(os.Getenv("GUEST_RUN"), onNode)
	need.Flag(t, strings.HasPrefix(tests, onNode), "GUEST_RUN names tests of another guest")
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "node-") // short enough for sockets, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	if _, err := harness.Build(ctx, filepath.Join(dir, "agent")); err != nil {
		t.Fatal(err)
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
	log := &strings.Builder{}
	g := Guest{Cache: filepath.Join(repo, ".cache"), Dir: dir, Output: &tee{t: t, all: log}, Systemd: true, Node: true}
	code, err := g.Run(ctx, "/usr/bin/env", "-C", filepath.Join(repo, "test/e2e"), filepath.Join(dir, "e2e.test"),
		"-test.v", "-test.timeout=24m", "-test.run", tests, "-lab", "-containerd=2",
		"-join", plane.Dir, "-agents", dir)
	if err != nil {
		t.Fatal(err)
	}
	subtests(t, log.String(), code)
}
