package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
)

// TestKubeletsOwnCredentials: an agent that only has the credentials of an rpm installation, kubelet's own, proves the
// leftovers of a pod and releases them. It leaves a running pod alone, and names the missing permission.
func TestKubeletsOwnCredentials(t *testing.T) {
	ofTheProcess(t, "a pod has a ServiceAccount")
	l := openLab(t)
	a := install(t, l, harness.Overrides{"paths": map[string]any{"kubeconfig": l.Paths.KubeletKubeconfig},
		"remediate": map[string]any{"mode": "on"}})
	living := newBystanders(t, l)
	gone, frozen := newVictim(t, a, "refused-victim"), newVictim(t, a, "refused-frozen")
	see := verdicts{t, a, gone, frozen}
	cgroups, err := l.PodCgroups(frozen.UID)
	if err != nil {
		t.Fatal(err)
	}
	memory, _ := hosttest.SharedMemory(t, cgroups...)
	t.Cleanup(func() { _ = frozen.Freeze("THAWED") }) // a frozen process cannot end
	see.awaitMemory(memory, object.Live)
	abandonBoth(t, gone, frozen)

	see.await(gone, "candidate", "kubelet's allocated_pods_state still names it")
	next := newVictim(t, a, "refused-next") // admitting it makes kubelet's record current
	t.Cleanup(func() { deletePod(t, next) })
	see.await(gone, "leftover", "no witness knows pod")
	see.awaitMemory(memory, object.Candidate)
	see.await(frozen, "candidate", "it is running, and only kubelet's /pods would show")
	text, err := a.CLI(t.Context(), "inspect")
	if err != nil || strings.Count(text.Stdout, "user=system:node:"+l.NodeName) != 1 ||
		!strings.Contains(text.Stdout, "note: kubelet refuses its /pods") {
		t.Errorf("%v: the right that lacks is not told once:\n%s", err, text.Stdout)
	}
	t.Logf("nodeagent inspect:\n%s", text.Stdout)
	awaitGone(t, a, gone)
	if traces, err := frozen.Traces(t.Context()); err != nil || len(traces) == 0 {
		t.Errorf("the pod that runs was released: %v, %v", traces, err)
	}

	if err := frozen.Freeze("THAWED"); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, a, frozen)
	see.awaitMemory(memory, object.Leftover) // its creator has exited
	living.check(t)
}

func newVictim(t *testing.T, a *harness.Agent, name string) *harness.Victim {
	t.Helper()
	v, err := harness.NewVictim(t.Context(), a.Lab, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func deletePod(t *testing.T, v *harness.Victim) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if out, err := v.Lab.Kubectl(ctx, "delete", "pod", v.Name, "--ignore-not-found"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// abandonBoth deletes two pods by force while kubelet is down. The processes of the second are frozen, so that kubelet
// cannot end them when it is back; of the first only the mounts stay.
func abandonBoth(t *testing.T, gone, frozen *harness.Victim) {
	t.Helper()
	l := gone.Lab
	if err := l.Stop(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	out, err := l.Kubectl(t.Context(), "delete", "pod", gone.Name, frozen.Name, "--force", "--grace-period=0")
	if err = errors.Join(err, frozen.Freeze("FROZEN"), l.Start(t.Context(), "kubelet")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// verdicts inspects by command. Meanwhile no object of a living pod, nor of the frozen one, may be a leftover. Objects
// of pods of earlier tests may: kubelet removes their sandboxes once a minute.
type verdicts struct {
	t            *testing.T
	a            *harness.Agent
	gone, frozen *harness.Victim
}

// mayNotLeave reports whether a pod must not have leftovers.
func (v verdicts) mayNotLeave(uid string) bool {
	v.t.Helper()
	living, err := v.a.Lab.Kubectl(v.t.Context(), "get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.uid}")
	if err != nil {
		v.t.Fatalf("%v: %s", err, living)
	}
	return uid == v.frozen.UID || strings.Contains(string(living), uid)
}

// awaitMemory inspects until a segment of shared memory created by the frozen pod has a verdict.
func (v verdicts) awaitMemory(id string, verdict object.Verdict) {
	v.t.Helper()
	await(v.t, "shared memory to be "+string(verdict), func() error {
		var report inspected
		if _, err := v.a.JSON(v.t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, o := range report.Objects {
			if o.Kind == object.SharedMemory && o.ID == id && o.Pod.UID == v.frozen.UID {
				if o.Verdict == verdict {
					return nil
				}
				return fmt.Errorf("%s: %s", o.Verdict, o.Why)
			}
		}
		return errors.New("it is not listed")
	})
}

// await inspects until an object of the victim has a verdict with that reason.
func (v verdicts) await(victim *harness.Victim, verdict, why string) {
	v.t.Helper()
	err := harness.WaitFor(v.t.Context(), victim.Name+" to be a "+verdict, func() error {
		var report harness.Inspected
		if _, err := v.a.JSON(v.t.Context(), &report, "inspect"); err != nil {
			return err
		}
		var others []string
		found, unknown := false, 0
		for _, o := range report.Objects {
			if o.Verdict == "leftover" && o.Pod.UID != v.gone.UID && v.mayNotLeave(o.Pod.UID) {
				v.t.Errorf("%s %s of pod %+v is a leftover: %s", o.Kind, o.ID, o.Pod, o.Why)
			}
			if o.Verdict == "unknown" {
				unknown++
			}
			if o.Pod.UID == victim.UID {
				found = found || o.Verdict == verdict && strings.Contains(o.Why, why)
				others = append(others, fmt.Sprintf("%s %s %s: %s", o.Kind, o.ID, o.Verdict, o.Why))
			}
		}
		if !found || verdict == "leftover" && unknown > 0 {
			return fmt.Errorf("it has %q, %d objects are unknown\ngates: %+v\nerrors: %+v", others, unknown, report.Gates,
				report.Errors)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
}
