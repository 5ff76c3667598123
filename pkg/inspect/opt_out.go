package inspect

import (
	"cmp"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/optout"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// optOuts returns by UID why no object of a pod may be released, or "", by the pod's labels and annotations. For pods
// not in the result they are unknown. Kubelet and the apiserver have the current ones; the runtime has those with which
// a sandbox was made, even of a deleted pod; the history has those of kubelet's last answer with the pod.
func (i *Inspector) optOuts(scan *hostscan.Scan, inventory *witness.Inventory, history object.History) map[string]string {
	reasons := make(map[string]string)
	note := func(uid, why string) { reasons[uid] = cmp.Or(reasons[uid], why) }
	if sandboxes, err := scan.Sandboxes(); err == nil {
		for _, s := range sandboxes {
			note(s.GetMetadata().GetUid(), scan.OptOut(s.GetLabels(), s.GetAnnotations()))
		}
	}
	now := make(map[string]bool)
	if inventory.Kubelet.OK() && !inventory.Kubelet.ByName() {
		for uid, pod := range inventory.Kubelet.Pods {
			now[uid] = true
			note(uid, pod.OptOut)
		}
	}
	if inventory.Cluster.OK() {
		for uid, pod := range inventory.Cluster.Pods {
			note(uid, pod.OptOut)
		}
	}
	for key, s := range history {
		uid, ok := optout.UIDOf(key)
		why := s.Identity.Names["optOut"]
		if ok && !now[uid] && (strings.HasPrefix(why, optout.By) || s.Identity.Names["selectors"] == i.selectors()) {
			note(uid, why)
		}
	}
	delete(reasons, "")
	return reasons
}

func (i *Inspector) selectors() string { return strings.Join(i.settings.OptOutPods, "; ") }

// applyOptOuts adds the opt-outs of pods to the objects of a report, and stores for the next passes the facts that must
// not be lost: which pods are opted out and, if there are selectors, which are not. A pod is forgotten once a whole
// pass finds no object of it.
func (i *Inspector) applyOptOuts(report *object.Report, next object.History, reasons map[string]string, whole bool,
	living map[string]witness.PodFact, now finding.Timestamp) {
	here := make(map[string]bool)
	for n := range report.Objects {
		o := &report.Objects[n]
		here[o.Pod.UID] = true
		o.OptOut, o.LabelsKnown = reasons[o.Pod.UID]
	}
	for uid, why := range reasons {
		_, lives := living[uid]
		if (lives || here[uid] || !whole) && (why != "" || len(i.settings.OptOutPods) > 0) {
			next[optout.Key(uid)] = object.Sighting{First: now, Last: now,
				Identity: object.Identity{Names: map[string]string{"optOut": why, "selectors": i.selectors()}}}
		}
	}
}
