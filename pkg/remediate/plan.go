package remediate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Policy is everything that a plan depends on besides the report.
type Policy struct {
	Settings
	Stop     string             // why nothing at all may be done now; empty when something may
	Attempts map[string]Attempt // by group: earlier releases according to the journal

	actions actions           // nil: all of them
	blocked map[string]string // by group: see blockedGroups
}

// withReport completes a policy with what depends on the report.
func (p Policy) withReport(report inspect.Report) Policy {
	if p.actions == nil {
		p.actions = Actions()
	}
	p.blocked = blockedGroups(report, p.Settings)
	return p
}

// Attempt is the last release of one pod.
type Attempt struct {
	At       finding.Timestamp
	Finished bool // it was not interrupted by a crash
	Complete bool // nothing was left
	Idle     bool // no step was begun: all of them had to wait for something
	Failures []finding.Timestamp
}

// idleRetry is when a release without any begun step is tried again, if Settings.RetryAfter is longer: what must be
// released first may not have been proven yet.
const idleRetry = time.Minute

// retryAfter is how long to wait after an attempt.
func (s Settings) retryAfter(a Attempt) time.Duration {
	if a.Idle {
		return min(s.RetryAfter, idleRetry)
	}
	return s.RetryAfter
}

// Step is one object in the plan.
type Step struct {
	Group       string             `json:"group"` // what is released together: a pod's UID, or its substitute
	Pod         inspect.Pod        `json:"pod"`
	Kind        inspect.Kind       `json:"kind"`
	ID          string             `json:"id"`
	Why         string             `json:"why"`                // why it is a leftover
	Description string             `json:"does"`               // what would be done
	Mode        Mode               `json:"mode"`               // of the action
	Blocked     string             `json:"notActed,omitempty"` // why it is not done; empty when it will be
	Object      inspect.Assessment `json:"-"`
	refused     bool               // because of the object itself
}

// Acts reports whether the step will be done.
func (s Step) Acts() bool { return s.Blocked == "" }

// same reports whether a step is about the same object.
func (s Step) same(other Step) bool { return s.Kind == other.Kind && s.ID == other.ID }

// Group returns what an object is released together with: its pod's UID; its sandbox if the pod is not known; itself if
// neither is known.
func Group(o inspect.Object) string {
	switch {
	case o.Pod.UID != "":
		return o.Pod.UID
	case o.SandboxID != "":
		return "sandbox/" + o.SandboxID
	}
	return string(o.Kind) + "/" + o.ID
}

// Plan lists what would be done about the leftovers of a report, pod by pod, and why not if nothing would. It is pure,
// and never contains an object that is not a leftover. Pods that were not tried yet come first, so that one that cannot
// be released does not use up the budget of others.
func Plan(report inspect.Report, policy Policy, now finding.Timestamp) []Step {
	policy = policy.withReport(report)
	stop := cmp.Or(policy.Stop, closedGate(report))
	left := policy.PodsPerHour - releasedLastHour(policy.Attempts, now)
	var steps []Step
	running := "" // the one pod with a running container
	for _, group := range groups(report, policy.Attempts, now) {
		pod := planGroup(group, policy)
		why := cmp.Or(stop, podBlocked(pod, policy, now))
		again := recent(policy.Attempts, pod[0].Group, now) // already counted in the budget
		if why == "" && anyActs(pod) && anyRuns(group) {
			if running != "" {
				why = fmt.Sprintf("it has a running container, and pod %s, which has one too, is released "+
					"first: one at a time", running)
			}
			running = cmp.Or(running, pod[0].Group)
		}
		if why == "" && anyActs(pod) && !again {
			if left <= 0 {
				why = fmt.Sprintf("budget: %d pods were released in the last hour", policy.PodsPerHour)
			}
			left--
		}
		for i := range pod {
			pod[i].Blocked = cmp.Or(pod[i].Blocked, why)
		}
		steps = append(steps, pod...)
	}
	return steps
}

// anyRuns reports whether the pod of objects has a running container: a mistake there would kill a workload.
func anyRuns(objects []inspect.Assessment) bool {
	return slices.ContainsFunc(objects, func(o inspect.Assessment) bool { return o.Running })
}

func anyActs(steps []Step) bool { return slices.ContainsFunc(steps, Step.Acts) }

// networkGate applies to network objects only, and their verdicts take it into account.
const networkGate = "network-ready"

// closedGate returns why nothing in the report may be released. No object of such a report should be a leftover; this
// is an additional check.
func closedGate(report inspect.Report) string {
	for _, gate := range report.Gates {
		if !gate.Open && gate.Name != networkGate {
			return fmt.Sprintf("gate %s is closed: %s", gate.Name, gate.Why)
		}
	}
	return ""
}

// groups returns the leftovers of a report by group, least recently tried first; those of which nothing is left but what
// does little harm come last, so that they do not use up the budget of others.
func groups(report inspect.Report, attempts map[string]Attempt, now finding.Timestamp) [][]inspect.Assessment {
	by := map[string][]inspect.Assessment{}
	for _, o := range report.Objects {
		if o.Verdict == inspect.Leftover {
			by[Group(o.Object)] = append(by[Group(o.Object)], o)
		}
	}
	all := make([][]inspect.Assessment, 0, len(by))
	for _, objects := range by {
		all = append(all, objects)
	}
	slices.SortFunc(all, func(a, b []inspect.Assessment) int {
		x, y := Group(a[0].Object), Group(b[0].Object)
		return cmp.Or(cmp.Compare(harms(b), harms(a)), cmp.Compare(lastTry(attempts, y, now),
			lastTry(attempts, x, now)), cmp.Compare(x, y))
	})
	return all
}

// harms is 1 for objects of which one does more than little harm.
func harms(objects []inspect.Assessment) int {
	if slices.ContainsFunc(objects, func(o inspect.Assessment) bool { return !o.Kind.Minor() }) {
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
func planGroup(objects []inspect.Assessment, policy Policy) []Step {
	var steps []Step
	for _, action := range policy.actions {
		mine := slices.DeleteFunc(slices.Clone(objects), func(o inspect.Assessment) bool {
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
		if _, ok := policy.actions.on(o.Kind); !ok {
			steps = append(steps, stepOf(o, Off, "", "there is no action for this kind"))
		}
	}
	return steps
}

func planOne(action Action, o inspect.Assessment, s Settings) Step {
	mode := s.ModeOf(o.Kind)
	does, refusal := action.Plan(o, s)
	switch {
	case refusal != "":
		step := stepOf(o, mode, does, "refused: "+refusal)
		step.refused = true
		return step
	case mode == On:
		return stepOf(o, mode, does, "")
	}
	return stepOf(o, mode, does, fmt.Sprintf("the mode for kind %s is %s", o.Kind, mode))
}

func stepOf(o inspect.Assessment, mode Mode, does, notNow string) Step {
	return Step{Group: Group(o.Object), Pod: o.Pod, Kind: o.Kind, ID: o.ID, Why: o.Why, Description: does, Mode: mode,
		Blocked: notNow, Object: o}
}

// blockedGroups returns by group why a pod must not be released: an object of it has an unknown verdict, or the pod, by
// its annotation or labels, or its namespace is opted out. When any namespace is opted out, leftovers must have a known namespace; one object in an
// opted-out namespace blocks the whole pod, whatever its verdict is.
func blockedGroups(report inspect.Report, s Settings) map[string]string {
	kept := map[string]string{}
	for _, o := range report.Objects {
		if o.Verdict == inspect.Unknown && !o.Kind.Minor() {
			kept[Group(o.Object)] = cmp.Or(kept[Group(o.Object)], fmt.Sprintf("the verdict on its %s %s is unknown: %s",
				o.Kind, o.ID, o.Why))
		}
		if why := s.optedOut(o.Pod.Namespace); why != "" && (o.Verdict == inspect.Leftover || o.Pod.Namespace != "") {
			kept[Group(o.Object)] = why
		}
		if why := s.podOptedOut(o.Object); why != "" && (o.Verdict == inspect.Leftover || o.OptOut != "") {
			kept[Group(o.Object)] = why
		}
	}
	return kept
}

// podBlocked returns why one pod is not released.
func podBlocked(steps []Step, policy Policy, now finding.Timestamp) string {
	group := steps[0].Group
	if why := policy.blocked[group]; why != "" {
		return why
	}
	attempt, ok := policy.Attempts[group]
	if why := Halt("releases of this pod", attempt.Failures, policy.StopAfter, now); why != "" && !policy.Attended {
		return why
	}
	if after := policy.retryAfter(attempt); ok && attempt.Finished && !attempt.Complete &&
		now.Since(attempt.At) < after {
		return fmt.Sprintf("was tried %s ago and could not be released completely; next try after %s",
			now.Since(attempt.At).Round(time.Second), after)
	}
	return ""
}

// releasedLastHour counts the pods that were released in the last hour.
func releasedLastHour(attempts map[string]Attempt, now finding.Timestamp) int {
	n := 0
	for group := range attempts {
		if recent(attempts, group, now) {
			n++
		}
	}
	return n
}

func recent(attempts map[string]Attempt, group string, now finding.Timestamp) bool {
	attempt, ok := attempts[group]
	return ok && now.Since(attempt.At) < time.Hour
}
