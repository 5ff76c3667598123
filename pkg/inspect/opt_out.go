package inspect

import (
	"cmp"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
)

// optOuts returns by UID what the labels and annotations of pods say: why nothing of it may be released, or "". Of pods
// that are not in it they are not known. Kubelet and the apiserver have those of now; the runtime has those with which
// a sandbox was made, also of a pod that was deleted; the history has what was said when kubelet had the pod last.
func (i *Inspector) optOuts(scan *hostscan.Scan, inventory *Inventory, history History) map[string]string {
	said := make(map[string]string)
	say := func(uid, why string) { said[uid] = cmp.Or(said[uid], why) }
	if sandboxes, err := scan.Sandboxes(); err == nil {
		for _, s := range sandboxes {
			say(s.GetMetadata().GetUid(), scan.OptOut(s.GetLabels(), s.GetAnnotations()))
		}
	}
	now := make(map[string]bool)
	if inventory.Kubelet.OK() && !inventory.Kubelet.byName() {
		for uid, pod := range inventory.Kubelet.Pods {
			now[uid] = true
			say(uid, pod.OptOut)
		}
	}
	if inventory.Cluster.OK() {
		for uid, pod := range inventory.Cluster.Pods {
			say(uid, pod.OptOut)
		}
	}
	for key, s := range history {
		uid, ok := optout.UIDOf(key)
		why := s.Identity["optOut"]
		if ok && !now[uid] && (strings.HasPrefix(why, optout.By) || s.Identity["selectors"] == i.selectors()) {
			say(uid, why)
		}
	}
	delete(said, "")
	return said
}

func (i *Inspector) selectors() string { return strings.Join(i.settings.OptOutPods, "; ") }

// applyOptOuts tells the objects of a report what is known of their pods, and stores for the next passes what must not
// be forgotten: which pods are opted out, and where there are selectors, which are not. A pod is forgotten when a whole
// pass finds nothing of it.
func (i *Inspector) applyOptOuts(report *Report, next History, said map[string]string, whole bool,
	living map[string]PodFact, now finding.Timestamp) {
	here := make(map[string]bool)
	for n := range report.Objects {
		o := &report.Objects[n]
		here[o.Pod.UID] = true
		o.OptOut, o.LabelsKnown = said[o.Pod.UID]
	}
	for uid, why := range said {
		_, lives := living[uid]
		if (lives || here[uid] || !whole) && (why != "" || len(i.settings.OptOutPods) > 0) {
			next[optout.Key(uid)] = Sighting{First: now, Last: now,
				Identity: Identity{"optOut": why, "selectors": i.selectors()}}
		}
	}
}

// memories returns how many entries of a history are of pods' labels and annotations.
func (h History) memories() int {
	n := 0
	for key := range h {
		if _, ok := optout.UIDOf(key); ok {
			n++
		}
	}
	return n
}
