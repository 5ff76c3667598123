package e2e

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// The tests of this file run on a node whose runtime is CRI-O: see Options.CRIO of test/lab.

func openCRIONode(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *crio, "-crio: on a node whose runtime is CRI-O")
	return openLab(t)
}

// A healthy node with CRI-O: each kind of object that it has is found, belongs to its pod and is alive, and what only
// containerd has is not missed.
func TestCRIOHealthyNode(t *testing.T) {
	l := openCRIONode(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	kinds := map[inspect.Kind]int{}
	containers := map[string]bool{}
	for _, o := range report.Objects {
		if o.Verdict != inspect.Live && o.Verdict != inspect.Foreign {
			t.Errorf("%s %s of %+v is %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
		if o.Pod.UID != living.pod.UID {
			continue
		}
		kinds[o.Kind]++
		if o.Kind == inspect.Container {
			containers[o.ID] = true
		}
	}
	for _, kind := range []inspect.Kind{inspect.Sandbox, inspect.Container, inspect.Process, inspect.CNIAttachment,
		inspect.Netns, inspect.Link, inspect.IPAMLease, inspect.Mount, inspect.Cgroup, inspect.PodDirectory,
		inspect.Shim, inspect.PodLogs} {
		if kinds[kind] == 0 {
			t.Errorf("no object of kind %s: is the agent blind here?", kind)
		}
	}
	for _, o := range report.Objects {
		if o.Pod.UID == living.pod.UID && o.Kind == inspect.Process && !containers[o.ContainerID] {
			t.Errorf("process %s is in no known container but %q: %v", o.ID, o.ContainerID, o.Facts)
		}
	}
	for _, e := range report.Errors {
		t.Errorf("%s: %s", e.What, e.Error)
	}
	for _, g := range report.Gates {
		if !g.Open {
			t.Errorf("gate %s is closed: %s", g.Name, g.Why)
		}
	}
	living.check(t)
}
