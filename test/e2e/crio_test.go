package e2e

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// The tests of this file run on a node with CRI-O: see Options.CRIO of test/lab.

func openCRIONode(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *crio, "-crio: on a node whose runtime is CRI-O")
	return openLab(t)
}

// On a healthy node with CRI-O each of its kinds of objects is found, belongs to its pod and is alive, and the kinds
// that only containerd has are not reported as missing.
func TestCRIOHealthyNode(t *testing.T) {
	l := openCRIONode(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	var report inspected
	if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
		t.Fatal(err)
	}
	kinds := map[object.Kind]int{}
	containers := map[string]bool{}
	for _, o := range report.Objects {
		if o.Verdict != object.Live && o.Verdict != object.Foreign {
			t.Errorf("%s %s of %+v is %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
		if o.Pod.UID != living.pod.UID {
			continue
		}
		kinds[o.Kind]++
		if o.Kind == object.Container {
			containers[o.ID] = true
		}
	}
	for _, kind := range []object.Kind{object.Sandbox, object.Container, object.Process, object.CNIAttachment,
		object.Netns, object.Link, object.IPAMLease, object.Mount, object.Cgroup, object.PodDirectory,
		object.Shim, object.PodLogs} {
		if kinds[kind] == 0 {
			t.Errorf("no object of kind %s: is the agent blind here?", kind)
		}
	}
	for _, o := range report.Objects {
		if o.Pod.UID == living.pod.UID && o.Kind == object.Process && !containers[o.ContainerID] {
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

// The leftovers of a deleted pod on a node with CRI-O are proven and released, its sandbox by CRI-O's own API; living
// objects beside it are untouched. While a witness does not answer, there is no release.
func TestCRIORelease(t *testing.T) {
	l := openCRIONode(t)
	a := install(t, l, harness.Overrides{"remediate": map[string]any{"retryAfter": "1ms", "podsPerHour": 1000,
		"ownerGrace": "2s"}})
	living := newBystanders(t, l)
	victim, err := harness.NewVictim(t.Context(), l, "crio-victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitProof(t, a, victim)
	traces, err := victim.Traces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"sandbox ", "container "} {
		if !slices.ContainsFunc(traces, func(trace string) bool { return strings.HasPrefix(trace, kind) }) {
			t.Errorf("CRI-O has no %sof the pod: this test proves little; there are %q", kind, traces)
		}
	}
	for _, witness := range []string{"crio", "kubelet"} {
		signal(witness, syscall.SIGSTOP)(t, l)
		answer, err := a.CLI(t.Context(), "clean", "--yes")
		signal(witness, syscall.SIGCONT)(t, l)
		if err != nil {
			t.Fatal(err)
		}
		left, err := victim.Traces(t.Context())
		if err != nil || !slices.Equal(left, traces) {
			t.Errorf("while %s hung: of %q there are %q, %v\n%s%s", witness, traces, left, err, answer.Stdout, answer.Stderr)
		}
	}
	awaitGone(t, a, victim)
	events, err := a.CLI(t.Context(), "events")
	if err != nil || !strings.Contains(events.Stdout, "released    sandbox") ||
		strings.Contains(events.Stdout, mutate.ErrChanged.Error()) {
		t.Errorf("%v\n%s%s", err, events.Stdout, events.Stderr)
	}
	living.check(t)
}
