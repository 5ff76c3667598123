package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// A running container is a witness for its pod: two lists without a pod can be wrong for the same reason, and a mistake
// would kill a workload. So a running pod is a leftover only if, in addition to all other conditions,
//
//   - a second list lacks it, Settings.RunningSpacing after the first one,
//   - the apiserver, asked for it by name, does not have it, or has another one of that name,
//   - it is the first one: a report never has more than one such pod.

// NameAnswer is the apiserver's answer to a request for a pod by name. It is a proof only if Gone or Alive is set.
type NameAnswer struct {
	At    finding.Timestamp `json:"at"`
	Gone  bool              `json:"gone,omitempty"`  // there is none, or another pod has that name
	Alive bool              `json:"alive,omitempty"` // it exists
	Why   string            `json:"why"`
}

// askAgain is how often one pod is requested by name, and for how long an answer is valid.
const askAgain = 10 * time.Minute

// holds reports whether an answer is still valid.
func (a NameAnswer) holds(now finding.Timestamp) bool {
	return !a.At.IsZero() && sameBoot(a.At, now) && a.At.SinceBoot <= now.SinceBoot && now.Since(a.At) < askAgain
}

// podKey is the key of a running pod in the history. No kind of object has such keys.
func podKey(uid string) string { return "pod/" + uid }

// podSighting is the history's entry about a running pod.
func (h History) podSighting(uid string, now finding.Timestamp) Sighting {
	s, ok := h[podKey(uid)]
	if !ok || !sameBoot(s.First, now) || s.First.SinceBoot > now.SinceBoot {
		return Sighting{First: now, Last: now}
	}
	return s
}

// runs reports whether a pod has a running container, or had one since it became suspect while its sandbox is still
// READY: the containers of a pod unknown to kubelet are never restarted.
func (t *Inventory) runs(uid string, history History, now finding.Timestamp) bool {
	if uid == "" || t.Runtime.Running[uid] {
		return uid != ""
	}
	s, ok := history[podKey(uid)]
	return ok && sameBoot(s.First, now) && t.Runtime.Pods[uid].State == "READY"
}

// runningSuspects returns the UIDs of the running suspects, sorted by when they are due to be requested by name.
func runningSuspects(suspects []*Object, t *Inventory, history History, now finding.Timestamp) []string {
	var uids []string
	for _, o := range suspects {
		if uid := o.Pod.UID; t.runs(uid, history, now) && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	slices.SortFunc(uids, func(a, b string) int {
		x, y := history.podSighting(a, now), history.podSighting(b, now)
		return cmp.Or(cmp.Compare(x.Named.At.SinceBoot, y.Named.At.SinceBoot),
			cmp.Compare(x.First.SinceBoot, y.First.SinceBoot), cmp.Compare(a, b))
	})
	return uids
}

// askOneByName asks the apiserver by name for one running pod that its list lacks: the one asked longest ago, one in a
// pass, each once in askAgain.
func (t *Inventory) askOneByName(ctx context.Context, scan *hostscan.Scan, running []string, history History,
	now finding.Timestamp) {
	for _, uid := range running {
		if !t.Cluster.OK() || hasPod(t.Cluster.Pods, uid) || history.podSighting(uid, now).Named.holds(now) {
			continue
		}
		pod := t.Runtime.Pods[uid].Pod
		pod.UID = uid
		t.askByName(ctx, scan, pod, now)
		return
	}
}

// askByName asks the apiserver for a pod by name.
func (t *Inventory) askByName(ctx context.Context, scan *hostscan.Scan, pod Pod, now finding.Timestamp) {
	misnamed := t.Runtime.Misnamed[pod.UID]
	answer, err := hostscan.Within(ctx, scan.Ends, hostscan.Apiserver, "the apiserver",
		func(ctx context.Context) (NameAnswer, error) { return askNamed(ctx, scan, pod, misnamed), nil })
	if err != nil {
		answer = NameAnswer{At: now, Why: err.Error()}
	}
	t.Named = map[string]NameAnswer{pod.UID: answer}
}

func askNamed(ctx context.Context, scan *hostscan.Scan, pod Pod, misnamed bool) NameAnswer {
	at, fullName := scan.Host.Clock(), pod.Namespace+"/"+pod.Name
	switch {
	case misnamed:
		return NameAnswer{At: at, Why: "its sandboxes have different pod names"}
	case pod.Namespace == "" || pod.Name == "":
		return NameAnswer{At: at, Why: "its sandbox has no pod name"}
	case scan.Host.Cluster.Pod == nil:
		return NameAnswer{At: at, Why: "there is no apiserver to ask for " + fullName}
	}
	found, err := scan.Host.Cluster.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsForbidden(err) && scan.Host.Cluster.PodsNamed != nil:
		// A node may get only pods bound to it, so it also gets Forbidden for a pod that does not exist.
		return askListOfName(ctx, scan, pod, at)
	case apierrors.IsNotFound(err):
		return NameAnswer{At: at, Gone: true, Why: "the apiserver has no pod " + fullName}
	case err != nil:
		return NameAnswer{At: at, Why: err.Error()}
	}
	return answerOf([]corev1.Pod{*found}, pod, at)
}

// askListOfName lists this one pod.
func askListOfName(ctx context.Context, scan *hostscan.Scan, pod Pod, at finding.Timestamp) NameAnswer {
	found, err := scan.Host.Cluster.PodsNamed(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return NameAnswer{At: at, Why: "getting it is forbidden; list it: " + err.Error()}
	}
	return answerOf(found, pod, at)
}

func answerOf(found []corev1.Pod, pod Pod, at finding.Timestamp) NameAnswer {
	for i := range found {
		if string(found[i].UID) == pod.UID || host.NodePodUID(&found[i]) == pod.UID {
			return NameAnswer{At: at, Alive: true,
				Why: fmt.Sprintf("the apiserver returns pod %s/%s by name", pod.Namespace, pod.Name)}
		}
	}
	if len(found) == 0 {
		return NameAnswer{At: at, Gone: true, Why: fmt.Sprintf("the apiserver lists no pod %s/%s on this node",
			pod.Namespace, pod.Name)}
	}
	return NameAnswer{At: at, Gone: true, Why: fmt.Sprintf("pod %s/%s is another one now: its UID is %s",
		pod.Namespace,
		pod.Name, found[0].UID)}
}

// runningPod holds the facts of one evaluation about a running pod.
type runningPod struct {
	Sighting
	counted bool // in this pass
}

// running returns the facts about a running pod, with the apiserver's latest answer; nil if it is not running.
func (e *evaluation) running(uid string) *runningPod {
	if !e.inventory.runs(uid, e.history, e.now) {
		return nil
	}
	pod := e.pods[uid]
	if pod == nil {
		pod = &runningPod{Sighting: e.history.podSighting(uid, e.now)}
		if answer, ok := e.inventory.Named[uid]; ok {
			pod.Named = answer
		}
		e.pods[uid] = pod
	}
	return pod
}

// alive reports whether the apiserver has returned the pod by name.
func (p *runningPod) alive(now finding.Timestamp) bool {
	return p != nil && p.Named.Alive && p.Named.holds(now)
}

// count counts a pass in which no witness knew the pod.
func (p *runningPod) count(t *Inventory, now finding.Timestamp) {
	if p.counted {
		return
	}
	p.counted = true
	older := !sameBoot(t.Cluster.At, p.First) || t.Cluster.At.SinceBoot < p.First.SinceBoot // than the first sighting
	p.Sighting = p.addPass(now)
	if t.Cluster.OK() && !older {
		p.Sighting = p.addDenial(t.Cluster.At)
	}
}

// missing returns the missing conditions for calling a running pod a leftover.
func (p *runningPod) missing(s Settings, now finding.Timestamp) []string {
	var missing []string
	if n := len(p.Denials); n == 0 || p.Denials[n-1].Since(p.Denials[0]) < s.RunningSpacing {
		missing = append(missing, fmt.Sprintf("it is running, so the apiserver must deny it twice, at least %s apart",
			round(s.RunningSpacing)))
	}
	switch {
	case p.Named.At.IsZero():
		missing = append(missing, "it is running, and the apiserver was not asked for it by name yet")
	case !p.Named.holds(now):
		missing = append(missing, "it is running, and the apiserver was not asked for it by name recently")
	case !p.Named.Gone:
		missing = append(missing,
			"it is running, and asking the apiserver for it by name proved nothing: "+p.Named.Why)
	}
	return missing
}

// missingFromList returns the running pods, and those that the breaker holds, that the apiserver has returned by name
// recently while its list lacks them.
func missingFromList(t *Inventory, history History, now finding.Timestamp) []string {
	var names []string
	for uid := range t.Runtime.Pods {
		answer, ok := t.Named[uid]
		if !ok {
			answer = history.podSighting(uid, now).Named
		}
		if answer.Alive && answer.holds(now) && t.Cluster.OK() && !hasPod(t.Cluster.Pods, uid) &&
			t.runs(uid, history, now) {
			names = append(names, t.Runtime.Pods[uid].Namespace+"/"+t.Runtime.Pods[uid].Name)
		}
	}
	for uid, answer := range t.heldAnswers(history) {
		if answer.Alive && answer.holds(now) && t.Cluster.OK() && !hasPod(t.Cluster.Pods, uid) {
			names = append(names, cmp.Or(strings.Trim(t.Runtime.Pods[uid].Namespace+"/"+t.Runtime.Pods[uid].Name, "/"), uid))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// heldAnswers returns the latest answers about pods that the breaker holds, by UID.
func (t *Inventory) heldAnswers(history History) map[string]NameAnswer {
	answers := make(map[string]NameAnswer)
	for k, s := range history {
		if uid, ok := strings.CutPrefix(k, namedKey("")); ok {
			answers[uid] = s.Named
		}
	}
	maps.Copy(answers, t.Named)
	return answers
}

// onlyOneRuns leaves at most one running pod among the leftovers: the first one denied.
func (e *evaluation) onlyOneRuns(objects []Assessment) {
	first := ""
	for i := range objects {
		uid := objects[i].Pod.UID
		if objects[i].Running && objects[i].Verdict == Leftover && (first == "" || e.deniedBefore(uid, first)) {
			first = uid
		}
	}
	for i := range objects {
		o := &objects[i]
		if o.Running && o.Verdict == Leftover && o.Pod.UID != first {
			o.Verdict, o.Why = Candidate, fmt.Sprintf("not yet: another running pod is first, %s; running pods are "+
				"released one at a time", first)
		}
	}
}

// deniedBefore reports whether the apiserver denied the pod a before it denied b.
func (e *evaluation) deniedBefore(a, b string) bool {
	x, y := e.pods[a], e.pods[b]
	return cmp.Or(cmp.Compare(x.Denials[0].SinceBoot, y.Denials[0].SinceBoot), cmp.Compare(a, b)) < 0
}

// keepRunning stores the facts about running suspects.
func (e *evaluation) keepRunning() {
	for uid, pod := range e.pods {
		e.next[podKey(uid)] = pod.Sighting
	}
}
