package release

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// releaseByHand releases the pod of a script at a person's request.
func (s *script) releaseByHand(b Manual) (outcome Outcome, err error) {
	s.t.Helper()
	synctest.Test(s.t, func(t *testing.T) {
		outcome, err = s.runner().Manual(b).Release(t.Context(), s.report())
	})
	s.invariants(outcome, err)
	return outcome, err
}

// Only steps that acted in the agreed plan are done, for the reason that the plan gave.
func TestReleaseKeepsToWhatWasAgreed(t *testing.T) {
	block := func(id, why string) func([]Step) []Step {
		return func(steps []Step) []Step {
			for i := range steps {
				if steps[i].ID == id || id == "" {
					steps[i].Blocked = why
				}
			}
			return steps
		}
	}
	withoutMount := []string{"sandbox s", "prepare process", "process 1", "process 2", "cgroup c"}
	for name, test := range map[string]struct {
		shown func([]Step) []Step
		done  []string
		why   string
	}{
		"all":           {func(steps []Step) []Step { return steps }, wholePod, ""},
		"it was paused": {block("", "paused"), nil, "paused"},
		"one had to stay": {block("m", "refused: data"), withoutMount,
			"mount m: refused: data"},
		"one was not there": {func(steps []Step) []Step {
			return slices.DeleteFunc(steps, func(s Step) bool { return s.ID == "m" })
		}, withoutMount, "mount m: it was not in the plan that was agreed to"},
		"nothing": {func([]Step) []Step { return []Step{} }, nil, "it was not in the plan that was agreed to"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			steps, err := s.runner().Plan(t.Context(), s.report())
			if err != nil {
				t.Fatal(err)
			}
			outcome, err := s.releaseByHand(Manual{Agreed: test.shown(steps)})
			if diff := cmp.Diff(test.done, s.done()); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
			if got := outcome.Pods[0].Why; got != test.why {
				t.Errorf("got %q, want %q", got, test.why)
			}
		})
	}
}

// Agreement to a plan does not cover the quarantine.
func TestAgreedReleaseSweepsNothing(t *testing.T) {
	w := newWorld(t)
	w.Write(filepath.Join(w.Mutator.QuarantineDir(), "somebody's"), "1234")
	if err := os.Chmod(w.Mutator.QuarantineDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, agreed := range [][]Step{nil, {}} {
		if got := w.runner().Manual(Manual{Agreed: agreed}).sweepDue(t.Context(), survey{}); got != (agreed == nil) {
			t.Errorf("agreed to %#v: %v", agreed, got)
		}
	}
}

// A record is reported once it is on disk; those cut off by an earlier crash do not count as this release's.
func TestReleaseTellsItsRecords(t *testing.T) {
	s := newScript(t)
	state := s.host.Files.Path("state")
	write(t, open(t, state), Record{At: now, Event: Begin, Group: uid2}, Record{At: now, Event: Intent, Group: uid2,
		Kind: object.Mount, ID: "other"})
	var told []Record
	outcome, err := s.releaseByHand(Manual{OnRecord: func(r Record) {
		told = append(told, r)
		records, _, err := ReadJournal(state)
		if err != nil || len(records) == 0 || !cmp.Equal(records[len(records)-1], r) {
			t.Errorf("%v: %+v is not on disk", err, r)
		}
	}})
	if err != nil || outcome.Pods[0].Result != Released {
		t.Fatalf("%v: %s", err, describe(outcome))
	}
	records, _, err := ReadJournal(state)
	if err != nil {
		t.Fatal(err)
	}
	ours := slices.DeleteFunc(records, func(r Record) bool { return r.Group == uid2 })
	if diff := cmp.Diff(ours, told); diff != "" || len(told) < 4 {
		t.Error(diff)
	}
}

// An object verified to be gone that exists again when the release stops is not a gain.
func TestStoppedReleaseGainsNothingThatReturned(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(report *object.Report)
		want    map[string]Result
		savings Savings
	}{
		"the pod came back": {func(report *object.Report) {
			m := leftover(object.Mount, uid1, "m")
			m.Verdict = object.Live
			report.Objects = append(report.Objects, m)
		}, map[string]Result{"m": Failed}, Savings{Objects: 3, Processes: 2, BytesUnknown: 1}},
		"another's, of that name": {func(report *object.Report) {
			m := leftover(object.Mount, uid2, "m")
			m.Verdict = object.Live
			report.Objects = append(report.Objects, m)
			report.Errors = []object.Failure{{What: "mount", Error: "EIO"}}
		}, map[string]Result{"m": Released}, Savings{Objects: 4, Processes: 2, Mounts: 1, BytesUnknown: 1}},
		"not all could be read": {func(report *object.Report) {
			report.Objects = append(report.Objects, leftover(object.Mount, uid1, "m"))
			report.Errors = []object.Failure{{What: "mount", Error: "EIO"}}
		}, map[string]Result{"m": Failed}, Savings{Objects: 3, Processes: 2, BytesUnknown: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.confirm = func(_ context.Context, n int, report *object.Report) error {
				if n == 4 { // after the mounts
					test.change(report)
				}
				return nil
			}
			outcome, err := s.release()
			if err != nil || outcome.Pods[0].Result == Released {
				t.Fatalf("%v: %s", err, describe(outcome))
			}
			for _, step := range outcome.Pods[0].Steps {
				if want := test.want[step.ID]; want != "" && step.Result != want {
					t.Errorf("%s: %s, want %s", step.ID, step.Result, want)
				}
			}
			if diff := cmp.Diff(test.savings, outcome.Savings()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Only objects verified to be gone are a gain, and each counts once.
func TestGain(t *testing.T) {
	of := func(result Result, kind object.Kind, facts ...string) StepOutcome {
		o := leftover(kind, uid1, strings.Join(facts, " "))
		o.Facts = object.Facts(facts...)
		return StepOutcome{Step: Step{Kind: kind, ID: o.ID, Object: o}, Result: result}
	}
	const logs, lease, attachment = object.PodLogs, object.IPAMLease, object.CNIAttachment
	for name, test := range map[string]struct {
		steps []StepOutcome
		want  Savings
	}{
		"nothing": {nil, Savings{}},
		"not gone": {[]StepOutcome{of(NotActed, logs, "bytes", "5"), of(Refused, logs, "bytes", "5"),
			of(Blocked, logs, "bytes", "5"), of(Failed, object.Mount), of(Stopped, object.Cgroup),
			of(Interrupted, object.Process), of(CouldNotTell, lease, "address", "10.0.0.1"), of("", object.Lease)},
			Savings{}},
		"dead before": {[]StepOutcome{of(Vanished, object.Process, "state", "Z")}, Savings{}},
		"gone, by us and by owners": {[]StepOutcome{of(Released, object.Mount), of(Vanished, object.Mount),
			of(Released, object.Cgroup), of(Released, object.Process, "state", "S"), of(Vanished, object.Shim),
			of(Released, object.Lease), of(Released, object.Netns)},
			Savings{Objects: 7, Mounts: 2, Cgroups: 1, Processes: 2, Leases: 1}},
		"space": {[]StepOutcome{of(Released, logs, "bytes", "5"), of(Vanished, logs, "bytes", "6"), of(Released, logs),
			of(Released, object.PodDirectory)}, Savings{Objects: 4, Bytes: 11, BytesUnknown: 2}},
		"addresses": {[]StepOutcome{of(Released, lease, "address", "10.0.0.1"),
			of(Vanished, attachment, "addresses", "10.0.0.1/24 fd00::1/64", "leaseDirectories", "/networks/a"),
			of(Released, attachment, "addresses", "10.9.9.9/32")}, Savings{Objects: 3, Addresses: 2, AddressesUnknown: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, (Outcome{Pods: []PodOutcome{{Steps: test.steps}}}).Savings()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
