package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestManyOrphans: a node was away, and ten of its twenty pods were removed by force meanwhile. The gate against mass
// orphaning closes, and says how a pod passes it. A person releases one pod by name, the daemon the others, one in a
// pass; the pods that live keep everything.
func TestManyOrphans(t *testing.T) {
	need.Flag(t, *long, "-long: twenty pods, and a pass for each that is gone")
	ofTheProcess(t, "the guards are the same")
	l := openLab(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	const each = 10
	var gone, stay []*harness.Victim
	for i := range 2 * each {
		v, err := harness.NewVictim(t.Context(), l, fmt.Sprintf("orphan-%02d", i))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			gone = append(gone, v)
			continue
		}
		stay = append(stay, v)
		t.Cleanup(func() {
			if err := v.Delete(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	if err := harness.LeaveMounts(t.Context(), gone...); err != nil {
		t.Fatal(err)
	}
	var closed harness.Inspected
	err := harness.WaitFor(t.Context(), "the gate to close, and to say how it is passed", func() error {
		if _, err := a.JSON(t.Context(), &closed, "inspect"); err != nil {
			return err
		}
		if why := closed.Gate("no-mass-orphaning"); !strings.Contains(why, "are known to no witness") {
			return fmt.Errorf("the gate: %s", why)
		}
		for _, g := range closed.Gates {
			if g.Name == "no-mass-orphaning" && g.Open {
				return fmt.Errorf("it is open: %s", g.Why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(closed.Gate("no-mass-orphaning"))

	by := gone[0]
	err = harness.WaitFor(t.Context(), "a person to release "+by.Name, func() error {
		answer, err := a.CLI(t.Context(), "clean", "--yes", "--pod", by.UID)
		if err != nil {
			return err
		}
		return nothingLeft(t.Context(), answer.Stdout+answer.Stderr, by)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range gone[1:] { // not asked for
		if traces, err := v.Traces(t.Context()); err != nil || len(traces) == 0 {
			t.Fatalf("%s went with it: %v", v.Name, err)
		}
	}
	if err := a.Configure(harness.Overrides{"remediate": map[string]any{"mode": "on"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = harness.WaitFor(t.Context(), "the daemon to release the others", func() error {
		return nothingLeft(t.Context(), "", gone...)
	})
	if err != nil {
		t.Error(err)
	}
	for _, v := range append(gone, stay...) {
		if err := v.CheckCanary(); err != nil {
			t.Errorf("user data was harmed: %v", err)
		}
	}
	for _, v := range stay {
		if pod, err := l.Pod(t.Context(), "default", v.Name); err != nil || pod.UID != v.UID || pod.Phase != "Running" {
			t.Errorf("%s: %+v, %v", v.Name, pod, err)
		}
	}
	living.check(t)
}

func nothingLeft(ctx context.Context, said string, victims ...*harness.Victim) error {
	for _, v := range victims {
		if traces, err := v.Traces(ctx); err != nil || len(traces) > 0 {
			return fmt.Errorf("%s left %q, %w\n%s", v.Name, traces, err, said)
		}
	}
	return nil
}
