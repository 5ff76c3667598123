package release

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// Policy is the input of a plan besides the report.
type Policy struct {
	Settings
	Node     []Guard            // whether any step may run now
	Attempts map[string]Attempt // by group: earlier releases according to the journal

	table actions.Table   // nil: all of them
	kept  map[string]kept // by group: see keptGroups
}

// Attempt is the last release of one pod.
type Attempt struct {
	At       finding.Timestamp
	Finished bool // it was not interrupted by a crash
	Complete bool // no object was left
	Idle     bool // no step was begun: all had to wait
	Failures []finding.Timestamp
}

// idleRetry is the wait after a release without any begun step, if Settings.RetryAfter is longer: the objects that must
// go first may not have been proven yet.
const idleRetry = time.Minute

// Step is one object in the plan.
type Step struct {
	Group       string            `json:"group"` // released together: a pod's UID, or its substitute
	Pod         object.Pod        `json:"pod"`
	Kind        object.Kind       `json:"kind"`
	ID          string            `json:"id"`
	Why         string            `json:"why"`                // why it is a leftover
	Description string            `json:"does"`               // what would be done
	Mode        Mode              `json:"mode"`               // of the action
	Blocked     string            `json:"notActed,omitempty"` // why it will not be done; empty: it will
	Guards      Guards            `json:"guards"`             // Blocked is the first closed one
	Object      object.Assessment `json:"-"`
	refused     bool              // because of the object itself
}

// Acts reports whether the step will run.
func (s Step) Acts() bool { return s.Blocked == "" }

// same reports whether a step is about the same object.
func (s Step) same(other Step) bool { return s.key() == other.key() }

func (s Step) key() string { return string(s.Kind) + "/" + s.ID }

// Group returns the key of objects released together: the pod's UID; its sandbox if the pod is unknown; the object
// itself if both are unknown.
func Group(o object.Object) string {
	switch {
	case o.Pod.UID != "":
		return o.Pod.UID
	case o.SandboxID != "":
		return "sandbox/" + o.SandboxID
	}
	return string(o.Kind) + "/" + o.ID
}

// Plan lists the steps for the leftovers of a report, pod by pod, each with the reason if it will not run. It is pure,
// and never contains an object that is not a leftover. Untried pods come first, so that one that cannot be released
// does not use up the budget of others.
func Plan(report object.Report, policy Policy, now finding.Timestamp) []Step {
	if policy.kept = keptGroups(report, policy.Settings); policy.table == nil {
		policy.table = actions.All()
	}
	node := slices.Concat(policy.Node, gateGuards(report))
	left := policy.PodsPerHour
	for group := range policy.Attempts {
		if recent(policy.Attempts, group, now) {
			left--
		}
	}
	var steps []Step
	running := "" // the one pod with a running container
	passes := ""  // the one pod that passes the closed breaker
	for _, group := range groups(report, policy.Attempts, now) {
		pod := planGroup(group, policy)
		name := pod[0].Group
		guards := slices.Concat(policy.podGuards(name, now), breaker(report, group, passes))
		free := anyActs(pod) && cmp.Or(firstClosed(node), firstClosed(guards)) == ""
		counted := recent(policy.Attempts, name, now)
		one, budget := oneRunning(anyRuns(group), running), policy.budget(left, counted)
		if free && anyRuns(group) {
			running = cmp.Or(running, name)
		}
		if free && one.Open && !counted {
			left--
		}
		if free && one.Open && budget.Open {
			passes = cmp.Or(passes, name)
		}
		guards = append(guards, one, budget)
		for i := range pod {
			pod[i].Guards.Node, pod[i].Guards.Pod = node, guards
			pod[i].Blocked = pod[i].Guards.why()
		}
		steps = append(steps, pod...)
	}
	return steps
}

// anyRuns reports whether the pod of objects has a running container.
func anyRuns(objects []object.Assessment) bool {
	return slices.ContainsFunc(objects, func(o object.Assessment) bool { return o.Running })
}

func anyActs(steps []Step) bool { return slices.ContainsFunc(steps, Step.Acts) }

// groups returns the leftovers of a report by group, least recently tried first; groups with only objects that do
// little harm come last, so that they do not use up the budget of others.
func groups(report object.Report, attempts map[string]Attempt, now finding.Timestamp) [][]object.Assessment {
	by := map[string][]object.Assessment{}
	for _, o := range report.Objects {
		if o.Verdict == object.Leftover {
			by[Group(o.Object)] = append(by[Group(o.Object)], o)
		}
	}
	all := make([][]object.Assessment, 0, len(by))
	for _, objects := range by {
		all = append(all, objects)
	}
	slices.SortFunc(all, func(a, b []object.Assessment) int {
		x, y := Group(a[0].Object), Group(b[0].Object)
		return cmp.Or(cmp.Compare(harms(b), harms(a)), cmp.Compare(lastTry(attempts, y, now),
			lastTry(attempts, x, now)), cmp.Compare(x, y))
	})
	return all
}

// harms is 1 if one of the objects does more than little harm.
func harms(objects []object.Assessment) int {
	if slices.ContainsFunc(objects, func(o object.Assessment) bool { return !kinds.Of(o.Kind).Minor() }) {
		return 1
	}
	return 0
}

// lastTry returns how long ago a group was tried; never is the longest time.
func lastTry(attempts map[string]Attempt, group string, now finding.Timestamp) time.Duration {
	const never = time.Duration(1<<63 - 1)
	if attempt, ok := attempts[group]; ok {
		return now.Since(attempt.At)
	}
	return never
}

// planGroup plans one pod independently of others.
func planGroup(objects []object.Assessment, policy Policy) []Step {
	var steps []Step
	for _, action := range policy.table {
		mine := slices.DeleteFunc(slices.Clone(objects), func(o object.Assessment) bool {
			return o.Kind != action.Kind
		})
		if action.Less != nil {
			slices.SortStableFunc(mine, action.Less)
		}
		for _, o := range mine {
			steps = append(steps, planOne(action, o, policy.Settings))
		}
	}
	for _, o := range objects {
		if _, ok := policy.table.On(o.Kind); !ok {
			steps = append(steps, stepOf(o, Off, "", answer("action", "there is no action for this kind", "")))
		}
	}
	return steps
}

func planOne(action actions.Action, o object.Assessment, s Settings) Step {
	mode := s.ModeOf(o.Kind)
	does, refusal := action.Plan(o, s.forActions())
	may := answer("action", refused(refusal), "it may act on such an object")
	step := stepOf(o, mode, does, may, modeGuard(o.Kind, mode))
	step.refused = refusal != ""
	return step
}

// refused is the reason of a guard that an action closes.
func refused(why string) string {
	if why == "" {
		return ""
	}
	return "refused: " + why
}

func stepOf(o object.Assessment, mode Mode, does string, guards ...Guard) Step {
	return Step{Group: Group(o.Object), Pod: o.Pod, Kind: o.Kind, ID: o.ID, Why: o.Why, Description: does, Mode: mode,
		Blocked: firstClosed(guards), Guards: Guards{Object: guards}, Object: o}
}

func recent(attempts map[string]Attempt, group string, now finding.Timestamp) bool {
	attempt, ok := attempts[group]
	return ok && now.Since(attempt.At) < time.Hour
}
