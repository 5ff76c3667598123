package repair

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Two faults need opposite actions: the cure of one is the other. Each action helps, and is undone by the other.
// Neither begins while the other is verified; after two turns both stop until the attempts are older than a day, and
// this is a finding for a person.
func TestOppositeActions(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		node, raised, meanwhile := "neither", map[string]time.Duration{}, ""
		var did []string
		wants := map[string]string{"check-up": "up", "check-down": "down"} // state of the node, by check
		var other *Runner
		action := func(name Name, check string) Action {
			return Action{Name: name, Answers: []Answer{{check, []string{"Wrong"}}},
				Examine: func(context.Context, Tools, finding.Finding) (Job, error) {
					return Job{Does: "put it " + wants[check], Do: func(context.Context) (string, error) {
						did, node = append(did, string(name)), wants[check]
						return "", nil
					}}, nil
				}}
		}
		w.settings.Actions = map[Name]release.Mode{"cure-up": release.On, "cure-down": release.On}
		fault := func(check string) finding.Finding {
			return finding.Finding{Check: check, Subject: subject, Reason: "Wrong", Message: "it is " + node}
		}
		w.options = func(o *Options) {
			o.actions = []Action{action("cure-up", "check-up"), action("cure-down", "check-down")}
			o.Observe = func(ctx context.Context, check string) (finding.Observation, error) {
				if meanwhile == "" && len(did) > 0 { // while it is verified, another process wants the other repair
					meanwhile = "asked"
					other.round(ctx)
					meanwhile = other.Status().Steps[1].Blocked
				}
				seen := finding.Observation{Check: check, At: w.now()}
				if node != wants[check] {
					seen.Findings = []finding.Finding{fault(check)}
				}
				return seen, nil
			}
		}
		believe := func(r *Runner) {
			state := finding.State{}
			for check, want := range wants {
				if node == want {
					delete(raised, check)
					continue
				}
				now := w.now()
				if _, ok := raised[check]; !ok {
					raised[check] = now.SinceBoot
				}
				at := now
				at.SinceBoot = raised[check]
				state[check] = &finding.CheckState{Subjects: map[string]*finding.Believed{"s": {Finding: fault(check),
					ID: check + raised[check].String(), Raised: at}}}
			}
			r.Update(state, nil)
		}
		other = w.runner()
		believe(other)
		var r *Runner
		days := []int{}
		for begin, last := time.Now(), 0; time.Since(begin) < 3*day; {
			r = w.runner() // the agent restarts every time
			believe(r)
			r.round(t.Context())
			time.Sleep(5 * time.Minute)
			if n := int(time.Since(begin) / day); n > len(days) {
				days = append(days, len(did)-last)
				last = len(did)
			}
		}
		for n, of := range days {
			if of > 5 {
				t.Errorf("day %d: %d repairs: %q", n, of, did)
			}
		}
		if !strings.Contains(meanwhile, "busy") {
			t.Errorf("another repair while one is verified: %q", meanwhile)
		}
		if !slices.Contains(did, "cure-up") || !slices.Contains(did, "cure-down") {
			t.Errorf("done %q", did)
		}
		for i, line := range w.journal() { // intent, end, finish: one after the other
			if want := []string{"intent", "end", "finish verified"}[i%3]; !strings.HasPrefix(line, want) {
				t.Fatalf("line %d of the journal: %q, want %q", i, line, want)
			}
		}
		steps := r.Status().Steps
		if len(steps) != 1 || !strings.Contains(steps[0].Blocked, "undo each other") {
			t.Errorf("%+v", steps)
		}
		found := r.Findings()
		if len(found) != 1 || found[0].Reason != reasonNoHelp || found[0].SuggestedAction != finding.SuggestHuman ||
			!strings.Contains(found[0].Message, "undo each other") {
			t.Errorf("%+v", found)
		}
	})
}
