package release

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Guard is the answer of one guard about a step at the time of the plan. Asking changes no state and uses up no budget.
type Guard struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	Why  string `json:"why"` // it is closed, or open
	// Unknown: it is closed because it could not be asked
	Unknown bool `json:"unknown,omitempty"`
}

// answer returns a guard that is closed if closed gives a reason.
func answer(name, closed, open string) Guard {
	return Guard{Name: name, Open: closed == "", Why: cmp.Or(closed, open)}
}

// Guards are the answers of all guards about one step, in the order in which they stop it. Node and Pod are shared with
// other steps: they must not be changed.
type Guards struct {
	Object []Guard `json:"object,omitempty"`
	Node   []Guard `json:"-"` // the same for all steps
	Pod    []Guard `json:"pod,omitempty"`
}

// why returns the reason of the first closed guard.
func (g Guards) why() string {
	return cmp.Or(firstClosed(g.Object), firstClosed(g.Node), firstClosed(g.Pod))
}

// Closed returns the reason of each closed guard.
func (g Guards) Closed() (reasons []string) {
	for _, guard := range slices.Concat(g.Object, g.Node, g.Pod) {
		if !guard.Open {
			reasons = append(reasons, guard.Why)
		}
	}
	return reasons
}

func firstClosed(guards []Guard) string {
	for _, g := range guards {
		if !g.Open {
			return g.Why
		}
	}
	return ""
}

// networkGate applies to network objects only, and their verdicts take it into account.
const networkGate = "network-ready"

// gateGuards are the gates of an inspection. If one is closed, the report should contain no leftovers; this is an
// additional check.
func gateGuards(report object.Report) (guards []Guard) {
	for _, gate := range report.Gates {
		if gate.Name != networkGate && gate.Name != object.Breaker {
			guards = append(guards, gateGuard(gate))
		}
	}
	return guards
}

func gateGuard(gate object.Gate) Guard {
	g := Guard{Name: "gate " + gate.Name, Open: gate.Open, Why: gate.Why}
	if g.Open {
		return g
	}
	g.Why = fmt.Sprintf("%s is closed: %s", g.Name, gate.Why)
	if gate.Opens != "" {
		g.Why += ". It opens " + gate.Opens
	}
	return g
}

// breaker is the answer of the gate against mass orphaning about one pod. While the gate is closed, a stronger proof
// lets one pod per pass through; first is that pod, if it is another one.
func breaker(report object.Report, objects []object.Assessment, first string) []Guard {
	i := slices.IndexFunc(report.Gates, func(g object.Gate) bool { return g.Name == object.Breaker })
	if i < 0 {
		return nil
	}
	gate := gateGuard(report.Gates[i])
	proven, others := 0, 0
	for _, o := range objects {
		if o.Verdict == object.Leftover && o.PassesBreaker {
			proven++
		} else if o.Verdict == object.Leftover {
			others++
		}
	}
	switch {
	case gate.Open || proven == 0 || others > 0:
	case len(first) > 0:
		gate.Why = fmt.Sprintf("%s is closed, and pod %s passes it first: one pod in a pass", gate.Name, first)
	default:
		gate.Open, gate.Why = true, "it is closed, and the stronger proof takes this pod through it"
	}
	return []Guard{gate}
}

// kept holds the reasons why a pod must not be released, as its objects show them.
type kept struct{ namespace, pod, unknown string }

// keptGroups returns by group why it must be kept: the pod, by annotation or labels, or its namespace is opted out, or
// the verdict on one of its objects is unknown. One object in an opted-out namespace is enough.
func keptGroups(report object.Report, s Settings) map[string]kept {
	groups := map[string]kept{}
	for _, o := range report.Objects {
		var k kept
		k.namespace, k.pod = s.OptedOut(o)
		if o.Verdict == object.Unknown && !kinds.Of(o.Kind).Minor() {
			k.unknown = fmt.Sprintf("the verdict on its %s %s is unknown: %s", o.Kind, o.ID, o.Why)
		}
		if k != (kept{}) {
			old := groups[Group(o.Object)]
			groups[Group(o.Object)] = kept{cmp.Or(old.namespace, k.namespace), cmp.Or(old.pod, k.pod),
				cmp.Or(old.unknown, k.unknown)}
		}
	}
	return groups
}

// OptedOut returns why the pod of an object is opted out, by its namespace and by its annotation or labels. Unknown
// labels count for leftovers only: other objects of the pod may know them.
func (s Settings) OptedOut(o object.Assessment) (namespace, pod string) {
	if o.Verdict == object.Leftover || o.Pod.Namespace != "" {
		namespace = s.optedOut(o.Pod.Namespace)
	}
	if o.Verdict == object.Leftover || o.OptOut != "" {
		pod = s.podOptedOut(o.Object)
	}
	return namespace, pod
}

// podGuards are the guards about one pod alone.
func (p Policy) podGuards(group string, now finding.Timestamp) []Guard {
	attempt, tried := p.Attempts[group]
	why := p.kept[group]
	const these = "releases of this pod"
	failures := Halt(these, attempt.Failures, p.StopAfter, now)
	return []Guard{
		answer("opt-out-namespace", why.namespace, "its namespace is not opted out"),
		answer("opt-out-pod", why.pod, "neither an annotation nor labels of it that are known opt it out"),
		answer("evidence", why.unknown, "the verdict on none of its objects is unknown"),
		p.failureGuard("failures-of-pod", failures, these),
		p.backOff(attempt, tried, now),
	}
}

// failureGuard is closed if too many releases have failed.
func (s Settings) failureGuard(name, why, releases string) Guard {
	if s.Attended {
		return answer(name, "", "a person asks for the release, which failures do not stop")
	}
	return answer(name, why, fmt.Sprintf("fewer than %d %s have failed within a day", s.StopAfter, releases))
}

func (p Policy) backOff(attempt Attempt, tried bool, now finding.Timestamp) Guard {
	since, after := now.Since(attempt.At), p.RetryAfter
	if attempt.Idle {
		after = min(after, idleRetry)
	}
	if tried && attempt.Finished && !attempt.Complete && since < after {
		return answer("back-off", fmt.Sprintf("was tried %s ago and could not be released completely; next try after %s",
			since.Round(time.Second), after), "")
	}
	return answer("back-off", "", "no attempt that was too soon ago has failed")
}

// oneRunning allows one pod with a running container at a time: a mistake there would kill a workload.
func oneRunning(runs bool, first string) Guard {
	switch {
	case !runs:
		return answer("one-running", "", "it has no running container")
	case first != "":
		return answer("one-running", fmt.Sprintf("it has a running container, and pod %s, which has one too, is released "+
			"first: one at a time", first), "")
	}
	return answer("one-running", "", "it is the first pod with a running container")
}

// budget has room for left more pods; a pod released within the last hour is already counted.
func (p Policy) budget(left int, counted bool) Guard {
	switch {
	case counted:
		return answer("budget", "", "it is counted already, by an attempt in the last hour")
	case left <= 0:
		return answer("budget", fmt.Sprintf("budget: %d pods were released in the last hour", p.PodsPerHour), "")
	}
	return answer("budget", "", fmt.Sprintf("%d of %d pods an hour are left", left, p.PodsPerHour))
}

func modeGuard(kind object.Kind, mode Mode) Guard {
	return Guard{Name: "mode", Open: mode == On, Why: fmt.Sprintf("the mode for kind %s is %s", kind, mode)}
}
