package e2e

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
)

// foreignCondition is another writer's condition on the Node.
const foreignCondition = `{"status":{"conditions":[{"type":"SomebodyElses","status":"True","reason":"Theirs","message":"not ours",` +
	`"lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`

// TestApiserverAway: a disk that fails while the apiserver is unreachable is reported once it is back; the conditions
// of other writers stay.
func TestApiserverAway(t *testing.T) {
	ofTheProcess(t, "a pod has the same client, with the same ServiceAccount")
	l := openLab(t)
	if out, err := l.Kubectl(t.Context(), "patch", "node", l.NodeName, "--subresource=status", "--type=strategic", "-p",
		foreignCondition); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := install(t, l, nil)
	theirs, err := a.Condition(t.Context(), "SomebodyElses")
	if err != nil || theirs.Status != "True" {
		t.Fatalf("%+v, %v", theirs, err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, a, "False")
	disk := newDisk(t, a)

	if err := l.Stop(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	err = disk.Fail()
	if startErr := l.Start(t.Context(), "kube-apiserver"); startErr != nil {
		t.Fatal(startErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, a, "True")
	if err := disk.Unmount(); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, a, "False")
	if after, err := a.Condition(t.Context(), "SomebodyElses"); err != nil || after != theirs {
		t.Errorf("another writer's condition: %+v, %v; it was %+v", after, err, theirs)
	}
}

// TestWitnessesAway: while kubelet, the runtime or the apiserver does not answer, no object of a deleted pod is called
// a leftover, however long it was one; the answer is "could not tell".
func TestWitnessesAway(t *testing.T) {
	if !*long {
		ofTheProcess(t, "a minute and a half; the witnesses are the same")
	}
	l := openLab(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	victim, err := harness.NewVictim(t.Context(), l, "unheard-victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitProof(t, a, victim)
	for _, component := range []string{"kubelet", "containerd", "kube-apiserver"} {
		t.Run(component, func(t *testing.T) {
			if err := l.Stop(t.Context(), component); err != nil {
				t.Fatal(err)
			}
			var report harness.Inspected
			answer, err := a.JSON(t.Context(), &report, "inspect")
			if startErr := l.Start(t.Context(), component); startErr != nil {
				t.Fatal(startErr)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range report.Objects {
				if o.Verdict == "leftover" {
					t.Errorf("%s %s is called a leftover although %s was stopped: %s", o.Kind, o.ID, component, o.Why)
				}
			}
			if answer.Code == 0 {
				t.Errorf("exit code 0 although %s was stopped:\n%s", component, strings.TrimSpace(answer.Stdout))
			}
		})
	}
	awaitProof(t, a, victim)
	awaitGone(t, a, victim)
	living.check(t)
}
