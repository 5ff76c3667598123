package release

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// answersOf lists the answers about the step on an object: the reasons of closed guards, the names of open ones.
func answersOf(t *testing.T, steps []Step, id string) (closed, open []string) {
	t.Helper()
	at := slices.IndexFunc(steps, func(s Step) bool { return s.ID == id })
	if at < 0 {
		t.Fatalf("no step on %s in %+v", id, steps)
	}
	s := steps[at]
	for _, g := range slices.Concat(s.Guards.Object, s.Guards.Node, s.Guards.Pod) {
		switch {
		case g.Why == "":
			t.Errorf("%s: %s does not say why", id, g.Name)
		case g.Open:
			open = append(open, g.Name)
		default:
			closed = append(closed, g.Name+": "+g.Why)
		}
	}
	var want string
	if reasons := s.Guards.Closed(); len(reasons) > 0 {
		want = reasons[0]
	}
	if s.Blocked != want || len(s.Guards.Closed()) != len(closed) {
		t.Errorf("%s is blocked by %q, and closed are %q", id, s.Blocked, closed)
	}
	return closed, open
}

// If several guards are closed, the plan names each, and contains the answers of the others too.
func TestPlanHasEveryAnswer(t *testing.T) {
	refused, plain, unknown := leftover(object.Mount, uid1, "m#1"), leftover(object.Cgroup, uid1, "/c1"),
		leftover(object.Process, uid1, "7")
	refused.Facts = map[string]string{"refused": "it is another pod's"}
	plain.OptOut = "its annotation says so"
	unknown.Verdict, unknown.Why = object.Unknown, "nobody could say"
	report := object.Report{Objects: []object.Assessment{refused, plain, unknown, leftover(object.Cgroup, uid2, "/c2")},
		Gates: []object.Gate{{Name: "list-is-ours", Why: "no pod of ours"}, {Name: "apiserver-heard", Open: true,
			Why: "now"},
			{Name: networkGate, Why: "it concerns the network only"}}}
	report.Objects[3].Pod.Namespace = "other"
	policy := on()
	policy.Mode, policy.OptOut, policy.PodsPerHour, policy.RetryAfter = DryRun, []string{"ns"}, 0, 3*time.Hour
	policy.Node = []Guard{{Name: "kill-switch", Why: "it exists"}, {Name: "pause", Why: "paused"},
		{Name: "failures", Open: true, Why: "none"}}
	failed := slices.Repeat([]finding.Timestamp{ago(2 * time.Hour)}, 3)
	policy.Attempts = map[string]Attempt{uid1: {At: ago(2 * time.Hour), Finished: true, Failures: failed}}
	steps := Plan(report, policy, now)
	ofNode := []string{"kill-switch: it exists", "pause: paused",
		"gate list-is-ours: gate list-is-ours is closed: no pod of ours"}
	ofPod := slices.Concat(ofNode, []string{"opt-out-namespace: namespace ns is opted out",
		"opt-out-pod: its annotation says so", "evidence: the verdict on its process 7 is unknown: nobody could say",
		"failures-of-pod: 3 releases of this pod have failed within a day: no more are tried until they are older",
		"back-off: was tried 2h0m0s ago and could not be released completely; next try after 3h0m0s",
		"budget: budget: 0 pods were released in the last hour"})
	for id, want := range map[string][2][]string{
		"m#1": {slices.Concat([]string{"action: refused: it is another pod's", "mode: the mode for kind mount is dry-run"},
			ofPod), {"failures", "gate apiserver-heard", "one-running"}},
		"/c1": {slices.Concat([]string{"mode: the mode for kind cgroup is dry-run"}, ofPod),
			{"action", "failures", "gate apiserver-heard", "one-running"}},
		"/c2": {slices.Concat([]string{"mode: the mode for kind cgroup is dry-run"}, ofNode,
			[]string{"budget: budget: 0 pods were released in the last hour"}),
			{"action", "failures", "gate apiserver-heard", "opt-out-namespace", "opt-out-pod", "evidence", "failures-of-pod",
				"back-off", "one-running"}},
	} {
		closed, open := answersOf(t, steps, id)
		if diff := cmp.Diff(want, [2][]string{closed, open}); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	if diff := cmp.Diff(steps, Plan(report, policy, now), cmp.AllowUnexported(Step{})); diff != "" {
		t.Errorf("asked again: %s", diff)
	}
}

// Budgets are used by planned releases, not by asking: a pod stopped by another guard leaves them to the next.
func TestAskingTakesNoBudget(t *testing.T) {
	const uid3 = "33333333-3333-3333-3333-333333333333"
	var report object.Report
	for _, uid := range []string{uid1, uid2, uid3} {
		o := leftover(object.Cgroup, uid, "/"+uid[:1])
		o.Running = true
		report.Objects = append(report.Objects, o)
	}
	report.Objects[0].OptOut = "its annotation"
	policy := on()
	policy.PodsPerHour = 1
	steps := Plan(report, policy, now)
	for id, want := range map[string][]string{
		"/1": {"opt-out-pod: its annotation"},
		"/2": nil,
		"/3": {"one-running: it has a running container, and pod " + uid2 + ", which has one too, is released first: one " +
			"at a time", "budget: budget: 1 pods were released in the last hour"},
	} {
		closed, _ := answersOf(t, steps, id)
		if diff := cmp.Diff(want, closed); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	policy.Attended, policy.PodsPerHour, report.Objects = true, 3, report.Objects[1:2]
	policy.Attempts = map[string]Attempt{uid2: {At: ago(time.Minute), Failures: slices.Repeat([]finding.Timestamp{
		ago(time.Minute)}, 3)}}
	if closed, open := answersOf(t, Plan(report, policy, now), "/2"); len(closed) > 0 ||
		!slices.Contains(open, "failures-of-pod") {
		t.Errorf("a person asks: closed are %q, open %q", closed, open)
	}
}

// A plan by hand contains all answers of external guards as well, and has no side effects: no journal line, no lock, no
// change. The daemon stops asking at the kill switch.
func TestPlanByHandAsksEverything(t *testing.T) {
	s := newFailing(t, 4)
	s.blocked() // three pods have failed
	s.makeSwitch()
	s.paused = func(context.Context, int) (string, error) { return "maintenance", nil }
	s.trace = nil
	before := s.files()
	r := s.runner()
	action := &r.options.table[slices.IndexFunc(r.options.table,
		func(a actions.Action) bool { return a.Kind == object.Cgroup })]
	action.Look = func(_ context.Context, _ actions.Tools, o object.Assessment) string {
		if o.ID == "c3" {
			return "it has user data"
		}
		return ""
	}
	s.settings.Mode = DryRun
	r.options.Settings = s.settings
	steps, err := r.Plan(t.Context(), s.report())
	if err != nil {
		t.Fatal(err)
	}
	closed, _ := answersOf(t, steps, "c3")
	want := []string{"look: refused: it has user data", "mode: the mode for kind cgroup is dry-run",
		"kill-switch: the kill switch /stop exists", "pause: maintenance",
		"failures: 3 pods in a row have failed within a day: no more are tried until they are older"}
	if diff := cmp.Diff(want, closed); diff != "" {
		t.Error(diff)
	}
	if closed, open := answersOf(t, steps, "c0"); len(closed) != 5 || !slices.Contains(open, "look") {
		t.Errorf("closed %q, open %q", closed, open)
	}
	if diff := cmp.Diff(before, s.files()); diff != "" || !slices.Equal(s.trace, []string{"paused?"}) {
		t.Errorf("%s%s", diff, s)
	}
	s.trace = nil
	if _, err := r.Release(t.Context(), s.report()); err != nil || len(s.trace) > 0 {
		t.Errorf("%v: %s", err, s)
	}
}

// A plan looks at some objects, and marks the others as not looked at.
func TestPlanLooksAtSome(t *testing.T) {
	s := newFailing(t, 0)
	for n := range maxPreviews + 1 {
		s.there = append(s.there, leftover(object.Cgroup, uid1, string(rune('a'+n))))
	}
	r, looks := s.runner(), 0
	for i := range r.options.table {
		r.options.table[i].Look = func(context.Context, actions.Tools, object.Assessment) string { looks++; return "" }
	}
	steps, err := r.Plan(t.Context(), s.report())
	if err != nil || len(steps) != maxPreviews+1 || looks != maxPreviews {
		t.Fatalf("%v, %d steps, %d looks", err, len(steps), looks)
	}
	last := steps[maxPreviews].Guards.Object[1]
	if want := "right before the step: a plan looks at 100 objects"; last.Name != "look" || !last.Open || last.Why != want {
		t.Errorf("%+v", last)
	}
}

// files are those of the node, with their contents.
func (s *script) files() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.host.Files.Root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		all[name] = string(data)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}
