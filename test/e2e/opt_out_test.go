package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

// optedOut are pods that are deleted with mounts left, and the output of clean for each; empty: it is released.
var optedOut = []struct {
	name  string
	about harness.About
	why   string // the guard and its answer
}{
	{"kept-by-annotation", harness.About{Annotations: map[string]string{optout.Annotation: "never"}},
		`opt-out-pod: its annotation nodeagent.github.io/release is "never"`},
	{"kept-by-label", harness.About{Labels: map[string]string{"tier": "db"}},
		`opt-out-pod: its labels match "tier in (db,queue)", which is opted out`},
	{"kept-by-namespace", harness.About{Namespace: "kept"}, "opt-out-namespace: namespace kept is opted out"},
	{"not-kept", harness.About{Labels: map[string]string{"tier": "web"}}, ""},
}

// TestOptOut: leftovers of pods that are opted out by annotation, label or namespace stay, although the pods are gone
// from kubelet and the apiserver; clean and inspect give the reason. Leftovers that the configuration opts out are
// released once it no longer does.
func TestOptOut(t *testing.T) {
	need.Flag(t, *long, "-long: kubelet removes sandboxes, which know their labels, once a minute")
	ofTheProcess(t, "what releases is a command on the host, beside which no daemon releases")
	l := openLab(t)
	many := map[string]any{"massOrphaning": 100}
	a := install(t, l, harness.Overrides{"inspect": many, "remediate": map[string]any{"optOut": []string{"kept"},
		"optOutPods": []string{"tier in (db,queue)"}}})
	living := newBystanders(t, l)
	if _, err := l.Kubectl(t.Context(), "create", "namespace", "kept"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = l.Kubectl(context.WithoutCancel(t.Context()), "delete", "namespace", "kept")
	})
	if err := l.WaitNamespace(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	victims := map[string]*harness.Victim{}
	var all []*harness.Victim
	for _, o := range optedOut {
		v, err := harness.NewVictimAbout(t.Context(), l, o.about, o.name)
		if err != nil {
			t.Fatal(err)
		}
		victims[o.name], all = v, append(all, v)
	}
	if _, err := a.CLI(t.Context(), "inspect"); err != nil { // it observes the living pods, and remembers their annotations
		t.Fatal(err)
	}
	if err := harness.LeaveMounts(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		awaitProof(t, a, v)
	}
	awaitNoSandbox(t, all)

	told := map[string]string{}
	for _, command := range []string{"clean", "inspect"} {
		answer, err := a.CLI(t.Context(), command)
		if err != nil || answer.Code != 1 {
			t.Errorf("%s: exit code %d, %v\n%s", command, answer.Code, err, answer.Stderr)
		}
		told[command] = answer.Stdout
		t.Logf("nodeagent %s:\n%s", command, answer.Stdout)
	}
	for _, o := range optedOut {
		_, why, _ := strings.Cut(o.why, ": ")
		expectOfPod(t, told["clean"], victims[o.name], "closed  "+cmp.Or(o.why, "opt-out"), o.why != "")
		expectOfPod(t, told["inspect"], victims[o.name], "kept: none of it is released: "+why, o.why != "")
	}

	awaitGone(t, a, victims["not-kept"])
	expectKept(t, victims["kept-by-annotation"], victims["kept-by-label"], victims["kept-by-namespace"])

	if err := a.Configure(harness.Overrides{"inspect": many}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, a, victims["kept-by-label"])
	awaitGone(t, a, victims["kept-by-namespace"])
	expectKept(t, victims["kept-by-annotation"])
	living.check(t)

	// An agent that has not seen the pod alive does not know its annotation.
	awaitGone(t, install(t, l, nil), victims["kept-by-annotation"])
}

// awaitNoSandbox waits until the runtime, too, has forgotten the pods, and with them their labels and annotations.
func awaitNoSandbox(t *testing.T, victims []*harness.Victim) {
	t.Helper()
	err := harness.WaitFor(t.Context(), "kubelet to remove the sandboxes", func() error {
		for _, v := range victims {
			traces, err := v.Traces(t.Context())
			if at := slices.IndexFunc(traces, func(s string) bool { return strings.HasPrefix(s, "containers ") }); at >= 0 {
				err = fmt.Errorf("%s has %s", v.Name, traces[at])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// expectOfPod requires that a text does, or does not, contain a line below the pod.
func expectOfPod(t *testing.T, text string, v *harness.Victim, want string, said bool) {
	t.Helper()
	_, below, found := strings.Cut(text, "/"+v.Name+" (")
	below, _, _ = strings.Cut(below, "\npod ")
	if !found || said != strings.Contains(strings.Join(strings.Fields(below), " "), strings.Join(strings.Fields(want), " ")) {
		t.Errorf("%s: %q: %v, want %v, in:\n%s", v.Name, want, !said, said, below)
	}
}

func expectKept(t *testing.T, victims ...*harness.Victim) {
	t.Helper()
	for _, v := range victims {
		if traces, err := v.Traces(t.Context()); err != nil || len(traces) == 0 {
			t.Errorf("what %s has left is gone: %v, %v", v.Name, traces, err)
		}
	}
}
