package mutate_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// shimOf returns the shim of a container.
func (g *ghosts) shimOf(id string) mutate.Shim {
	g.t.Helper()
	stat, err := g.Host.ProcStat(g.pid(id))
	if err != nil {
		g.t.Fatal(err)
	}
	shim, err := g.Host.ProcStat(stat.PPID)
	if err != nil {
		g.t.Fatal(err)
	}
	return mutate.Shim{PID: shim.PID, StartTime: shim.StartTime, ID: id}
}

// forget deletes the record of a container, as the loss of the database would.
func (g *ghosts) forget(id string) {
	g.t.Helper()
	if err := g.client.ContainerService().Delete(namespaces.WithNamespace(g.t.Context(), cri.Namespace),
		id); err != nil {
		g.t.Fatal(err)
	}
}

func (g *ghosts) kill(pid int) {
	g.t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		g.t.Fatal(err)
	}
	mutatetest.Await(g.t, func() bool { return unix.Kill(pid, 0) != nil })
}

// A shim is ended if containerd has lost its container and it has no child processes. A shim with a process, a record,
// another identity or another containerd is not ended.
func TestEndShim(t *testing.T) {
	g := newGhosts(t)
	uid := mutatetest.UID(t)
	parent := g.podCgroup(uid)
	lost, known := g.ctd.Ghost(uid, "container", parent), g.ctd.Ghost(uid, "container", parent)
	shim, sibling := g.shimOf(lost), g.shimOf(known)
	pid := g.pid(lost)
	g.forget(lost)
	end := func(s mutate.Shim) error { return g.Mutator.EndShim(t.Context(), s, 5*time.Second) }
	if err := end(shim); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("with a process below it: %v", err)
	}
	g.kill(pid)
	g.kill(g.pid(known))
	again, another, mine := shim, shim, shim
	again.StartTime++
	another.ID = mutatetest.Hex(t, 64)
	self, err := g.Host.ProcStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	mine.PID, mine.StartTime = self.PID, self.StartTime
	for name, try := range map[string]mutate.Shim{"started again": again, "of another ID": another, "no shim": mine} {
		if err := end(try); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := end(sibling); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("of a container that containerd has: %v", err)
	}
	elsewhere := mutatetest.StartContainerd(t)
	foreign := mutatetest.New(t, func(p *host.Paths) { p.CRISocket, p.ContainerdSocket = elsewhere.Socket, elsewhere.Socket })
	var refusal mutate.Refusal
	if err := foreign.Mutator.EndShim(t.Context(), shim, time.Second); !errors.As(err, &refusal) {
		t.Errorf("of another containerd: %v", err)
	}
	for _, s := range []mutate.Shim{shim, sibling} {
		if ended, err := g.Mutator.Ended(mutate.Process{PID: s.PID, StartTime: s.StartTime}); ended || err != nil {
			t.Fatalf("shim %d has ended: %v", s.PID, err)
		}
	}
	for range 2 {
		if err := end(shim); err != nil {
			t.Fatal(err)
		}
	}
	if ended, err := g.Mutator.Ended(mutate.Process{PID: shim.PID, StartTime: shim.StartTime}); !ended || err != nil {
		t.Errorf("it lives: %v", err)
	}
	if ended, _ := g.Mutator.Ended(mutate.Process{PID: sibling.PID, StartTime: sibling.StartTime}); ended {
		t.Error("the sibling has ended")
	}
	// containerd removes the shim's bundle.
	mutatetest.Await(t, func() bool { _, err := os.Lstat(g.ctd.Bundle(lost)); return os.IsNotExist(err) })
}
