package witness

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// NameOf returns the name of a pod, on which all of its named objects and sandboxes must agree, or why it is unknown.
func (t *Inventory) NameOf(uid string, objects []*object.Object) (pod object.Pod, unknown string) {
	names := []object.Pod{t.Runtime.Pods[uid].Pod}
	for _, o := range objects {
		if o.Pod.UID == uid {
			names = append(names, o.Pod)
		}
	}
	names = slices.DeleteFunc(names, func(p object.Pod) bool { return p.Namespace == "" || p.Name == "" })
	switch {
	case len(names) == 0:
		return object.Pod{}, "its name is not known, so the apiserver cannot be asked for it"
	case t.Runtime.Misnamed[uid] || slices.ContainsFunc(names, func(p object.Pod) bool {
		return p.Namespace != names[0].Namespace || p.Name != names[0].Name
	}):
		return object.Pod{}, "its objects name different pods, so the apiserver cannot be asked for it"
	}
	return object.Pod{UID: uid, Namespace: names[0].Namespace, Name: names[0].Name}, ""
}

// HeldByName returns the pods that the breaker may hold and whose answer by name is missing or due for renewal, the one
// asked longest ago first. The breaker was closed in the last pass. pinned is the UID or name of the pod that a person
// or a release is about; it is asked first.
func (t *Inventory) HeldByName(suspects []*object.Object, history object.History, now finding.Timestamp,
	pinned string) []object.Pod {
	if _, closed := history[object.GateKey(object.Breaker)]; !closed || !t.Cluster.OK() {
		return nil
	}
	firsts := make(map[string]finding.Timestamp)
	for _, o := range suspects {
		uid, seen := o.Pod.UID, history.Seen(o, now).First
		if old, ok := firsts[uid]; (!ok || seen.SinceBoot < old.SinceBoot) && !t.Runtime.Running[uid] &&
			!HasPod(t.Cluster.Pods, uid) {
			firsts[uid] = seen
		}
	}
	var due []object.Pod
	for uid := range firsts {
		if pod, unknown := t.NameOf(uid, suspects); unknown == "" {
			due = append(due, pod)
		}
	}
	isPinned := func(p object.Pod) bool {
		return pinned != "" && (p.UID == pinned || p.Name == pinned || p.Namespace+"/"+p.Name == pinned)
	}
	rank := func(p object.Pod) int {
		if isPinned(p) {
			return 0
		}
		return 1
	}
	slices.SortFunc(due, func(a, b object.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)),
			cmp.Compare(firsts[a.UID].SinceBoot, firsts[b.UID].SinceBoot), cmp.Compare(a.UID, b.UID))
	})
	const atOnce = 20 // each is asked twice in strongLasts, one in a pass, so that an answer is renewed before it expires
	due = due[:min(len(due), atOnce)]
	due = slices.DeleteFunc(due, func(p object.Pod) bool {
		named := history[object.NamedKey(p.UID)].Named
		renew := object.StrongLasts / 2
		switch {
		case named.Alive: // it closes a gate while it holds
			renew = object.AskAgain / 2
		case isPinned(p):
			renew = object.AskAgain
		}
		return !named.At.IsZero() && object.SameBoot(named.At, now) && now.Since(named.At) < renew
	})
	slices.SortStableFunc(due, func(a, b object.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(history[object.NamedKey(a.UID)].Named.At.SinceBoot,
			history[object.NamedKey(b.UID)].Named.At.SinceBoot))
	})
	return due
}

// AskHeldByName asks the apiserver by name for one pod that the breaker may hold, if this pass has asked for none yet.
func (t *Inventory) AskHeldByName(ctx context.Context, scan *hostscan.Scan, due []object.Pod, now finding.Timestamp) {
	if len(due) > 0 && len(t.Named) == 0 {
		t.askByName(ctx, scan, due[0], now)
	}
}

// Runs reports whether a pod has a running container, or had one since it became suspect while its sandbox is still
// READY: the containers of a pod unknown to kubelet are never restarted.
func (t *Inventory) Runs(uid string, history object.History, now finding.Timestamp) bool {
	if uid == "" || t.Runtime.Running[uid] {
		return uid != ""
	}
	s, ok := history[object.PodKey(uid)]
	return ok && object.SameBoot(s.First, now) && t.Runtime.Pods[uid].State == "READY"
}

// AskOneByName asks the apiserver by name for one running pod that its list lacks: the one asked longest ago, one in a
// pass, each once in askAgain.
func (t *Inventory) AskOneByName(ctx context.Context, scan *hostscan.Scan, running []string, history object.History,
	now finding.Timestamp) {
	for _, uid := range running {
		if !t.Cluster.OK() || HasPod(t.Cluster.Pods, uid) || history.PodSighting(uid, now).Named.Holds(now) {
			continue
		}
		pod := t.Runtime.Pods[uid].Pod
		pod.UID = uid
		t.askByName(ctx, scan, pod, now)
		return
	}
}

// askByName asks the apiserver for a pod by name.
func (t *Inventory) askByName(ctx context.Context, scan *hostscan.Scan, pod object.Pod, now finding.Timestamp) {
	misnamed := t.Runtime.Misnamed[pod.UID]
	answer, err := hostscan.Within(ctx, scan.Ends, hostscan.Apiserver, "the apiserver",
		func(ctx context.Context) (object.NameAnswer, error) { return askNamed(ctx, scan, pod, misnamed), nil })
	if err != nil {
		answer = object.NameAnswer{At: now, Why: err.Error()}
	}
	t.Named = map[string]object.NameAnswer{pod.UID: answer}
}

func askNamed(ctx context.Context, scan *hostscan.Scan, pod object.Pod, misnamed bool) object.NameAnswer {
	at, fullName := scan.Host.Clock(), pod.Namespace+"/"+pod.Name
	switch {
	case misnamed:
		return object.NameAnswer{At: at, Why: "its sandboxes have different pod names"}
	case pod.Namespace == "" || pod.Name == "":
		return object.NameAnswer{At: at, Why: "its sandbox has no pod name"}
	case scan.Host.Cluster.Pod == nil:
		return object.NameAnswer{At: at, Why: "there is no apiserver to ask for " + fullName}
	}
	found, err := scan.Host.Cluster.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsForbidden(err) && scan.Host.Cluster.PodsNamed != nil:
		// A node may get only pods bound to it, so it also gets Forbidden for a pod that does not exist.
		return askListOfName(ctx, scan, pod, at)
	case apierrors.IsNotFound(err):
		return object.NameAnswer{At: at, Gone: true, Why: "the apiserver has no pod " + fullName}
	case err != nil:
		return object.NameAnswer{At: at, Why: err.Error()}
	}
	return answerOf([]corev1.Pod{*found}, pod, at)
}

// askListOfName lists this one pod.
func askListOfName(ctx context.Context, scan *hostscan.Scan, pod object.Pod, at finding.Timestamp) object.NameAnswer {
	found, err := scan.Host.Cluster.PodsNamed(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return object.NameAnswer{At: at, Why: "getting it is forbidden; list it: " + err.Error()}
	}
	return answerOf(found, pod, at)
}

func answerOf(found []corev1.Pod, pod object.Pod, at finding.Timestamp) object.NameAnswer {
	for i := range found {
		if string(found[i].UID) == pod.UID || host.NodePodUID(&found[i]) == pod.UID {
			return object.NameAnswer{At: at, Alive: true,
				Why: fmt.Sprintf("the apiserver returns pod %s/%s by name", pod.Namespace, pod.Name)}
		}
	}
	if len(found) == 0 {
		return object.NameAnswer{At: at, Gone: true, Why: fmt.Sprintf("the apiserver lists no pod %s/%s on this node",
			pod.Namespace, pod.Name)}
	}
	return object.NameAnswer{At: at, Gone: true, Why: fmt.Sprintf("pod %s/%s is another one now: its UID is %s",
		pod.Namespace,
		pod.Name, found[0].UID)}
}

// HeldAnswers returns the latest answers about pods that the breaker holds, by UID.
func (t *Inventory) HeldAnswers(history object.History) map[string]object.NameAnswer {
	answers := make(map[string]object.NameAnswer)
	for k, s := range history {
		if uid, ok := strings.CutPrefix(k, object.NamedKey("")); ok {
			answers[uid] = s.Named
		}
	}
	maps.Copy(answers, t.Named)
	return answers
}
