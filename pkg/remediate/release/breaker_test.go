package release

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// While the gate against mass orphaning is closed, a plan contains one pod with the stronger proof: the one tried
// longest ago that no other guard stops. The other pods are left alone.
func TestPlanTakesOnePodThroughTheBreaker(t *testing.T) {
	const uid3, uid4 = "33333333-3333-3333-3333-333333333333", "44444444-4444-4444-4444-444444444444"
	strong := func(uid string) object.Assessment {
		o := leftover(object.Mount, uid, "m-"+uid)
		o.PassesBreaker = true
		return o
	}
	weak, kept := leftover(object.Mount, uid1, "m-"+uid1), strong(uid2)
	kept.OptOut = "its annotation says so"
	closed := object.Gate{Name: object.Breaker, Why: "ten of twenty", Opens: "by itself or by a person"}
	for name, test := range map[string]struct {
		gate object.Gate
		bend func(*Policy)
		want map[string]string
	}{
		"closed": {closed, nil, map[string]string{uid1: "It opens by itself or by a person", uid2: "annotation", uid3: "",
			uid4: "pod " + uid3 + " passes it first"}},
		"the first was tried": {closed, func(p *Policy) {
			p.Attempts = map[string]Attempt{uid3: {At: ago(2 * p.RetryAfter), Finished: true}}
		}, map[string]string{uid1: "ten of twenty", uid2: "annotation", uid3: "pod " + uid4 + " passes it first", uid4: ""}},
		"the first has to wait": {closed, func(p *Policy) {
			p.Attempts = map[string]Attempt{uid3: {At: ago(p.RetryAfter / 2), Finished: true}}
		}, map[string]string{uid1: "ten of twenty", uid2: "annotation", uid3: "was tried", uid4: ""}},
		"the budget is spent": {closed, func(p *Policy) { p.PodsPerHour = 0 }, map[string]string{uid1: "ten of twenty",
			uid2: "annotation", uid3: "budget", uid4: "budget"}},
		"dry run": {closed, func(p *Policy) { p.Mode = DryRun }, map[string]string{uid1: "dry-run", uid2: "dry-run",
			uid3: "dry-run", uid4: "dry-run"}},
		"open": {object.Gate{Name: object.Breaker, Open: true}, nil, map[string]string{uid1: "", uid2: "annotation",
			uid3: "", uid4: ""}},
	} {
		t.Run(name, func(t *testing.T) {
			policy := on()
			if test.bend != nil {
				test.bend(&policy)
			}
			report := object.Report{Objects: []object.Assessment{weak, kept, strong(uid3), strong(uid4)},
				Gates: []object.Gate{test.gate}}
			for _, step := range Plan(report, policy, now) {
				want := test.want[step.Group]
				if step.Acts() != (want == "") || !strings.Contains(step.Blocked, want) {
					t.Errorf("%s: %q, want %q", step.Group, step.Blocked, want)
				}
			}
		})
	}
}
