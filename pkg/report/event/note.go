package event

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// maxReason and maxMessage are the apiserver's limits of an event, in bytes (ReasonLengthLimit and NoteLengthLimit;
	// it enforces them for events.k8s.io only, but other readers rely on them).
	maxReason  = 128
	maxMessage = 1024
	// maxName is the longest name of an object.
	maxName = 253
	// maxSubject bounds the annotation that names the subject.
	maxSubject = 512

	component      = "nodeagent"
	clearedSuffix  = "Cleared"
	droppedReason  = "EventsDropped"
	releasedReason = "LeftoversReleased"
	failedReason   = "LeftoverReleaseFailed"
	repairedReason = "Repaired"
	annotationsFor = component + "/" // prefix of our annotations
)

// note is the content of one event. It is stored, so its fields are a file format.
type note struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Type    string `json:"type"` // Normal or Warning
	Check   string `json:"check,omitempty"`
	Subject string `json:"subject,omitempty"`
	Source  string `json:"source,omitempty"` // the component; ours unless set
	Suggest string `json:"suggestedAction,omitempty"`
}

// noteOf returns the note of an update. A raised or changed finding has its own reason, a cleared one the same reason
// with the suffix "Cleared": so raising and clearing have separate budgets. A changed status has no event: the
// condition shows it, and the findings that changed it have theirs.
func noteOf(u finding.Update) (note, bool) {
	f := u.Finding
	n := note{Type: typeOf(f.Severity), Check: report.Text(f.Check, maxReason), Subject: report.Text(f.Subject.String(),
		maxSubject)}
	switch u.Kind {
	case finding.Raised, finding.Changed:
		n.Suggest = report.Text(f.Suggestion(), maxSubject)
		n.Reason, n.Message = report.Reason(f.Reason, maxReason), report.Text(f.Message, maxMessage)
	case finding.Cleared:
		if f.OneShot {
			return note{}, false
		}
		n.Type = corev1.EventTypeNormal
		n.Reason = report.Reason(f.Reason, maxReason-len(clearedSuffix)) + clearedSuffix
		n.Message = report.Text("resolved: "+f.Message, maxMessage)
	default:
		return note{}, false
	}
	return n, true
}

// noteOfActivity returns the note of the end of a pod's release: verified, or failed if the attempt before did not
// fail; and of a verified repair, which belongs to no pod. A repair that did not help is a finding.
func noteOfActivity(a finding.Activity) (note, bool) {
	reason := releasedReason
	switch {
	case a.Kind == finding.ActionVerified && a.Pod == (finding.Subject{}):
		reason = repairedReason
	case a.Kind == finding.ActionVerified:
	case a.Kind == finding.ActionFailed && a.Subject == a.Pod && !a.Repeated:
		reason = failedReason
	default:
		return note{}, false
	}
	return note{Reason: reason, Type: typeOf(a.Severity), Message: report.Text(a.Message, maxMessage),
		Check: report.Text(a.Check, maxReason), Subject: report.Text(a.Subject.String(), maxSubject)}, true
}

// noteOf returns the note of an update, in the wording of its check.
func (r *Reporter) noteOf(u finding.Update) (note, bool) {
	n, ok := noteOf(u)
	if w, has := r.config.Wordings[u.Finding.Check]; ok && has {
		n = worded(n, w, u)
	}
	return n, ok
}

// noteAgain returns the note of a present finding.
func (r *Reporter) noteAgain(b finding.Believed) note {
	n, _ := r.noteOf(finding.Update{Kind: finding.Raised, Finding: b.Finding})
	suffix := ""
	if !b.Raised.Wall.IsZero() {
		suffix = " (since " + b.Raised.Wall.UTC().Format("2006-01-02T15:04:05Z") + ")"
	}
	n.Message = report.TextWith(n.Message, suffix, maxMessage)
	return n
}

func typeOf(s finding.Severity) string {
	if s == finding.Info {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// eventOf makes the event of an item. It depends only on its arguments, so that another attempt makes the same event.
func eventOf(node string, item report.Item, n note) *corev1.Event {
	if item.Count > 1 {
		n.Message = report.TextWith(n.Message, fmt.Sprintf(" (and %d more)", item.Count-1), maxMessage)
	}
	annotations := map[string]string{annotationsFor + "id": item.ID}
	if n.Check != "" {
		annotations[annotationsFor+"check"], annotations[annotationsFor+"subject"] = n.Check, n.Subject
	}
	if n.Suggest != "" {
		annotations[annotationsFor+"suggested-action"] = n.Suggest
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(node, item.ID), Namespace: metav1.NamespaceDefault,
			Annotations: annotations},
		// "kubectl describe node" shows events whose involved UID is the Node's UID or its name, but not without a UID;
		// the name is known without reading the Node.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Reason:         n.Reason, Message: n.Message, Type: n.Type, Count: int32(min(item.Count, 1<<30)),
		Source:         corev1.EventSource{Component: cmp.Or(n.Source, component), Host: node},
		FirstTimestamp: metav1.NewTime(item.First), LastTimestamp: metav1.NewTime(item.Last),
		ReportingController: component, ReportingInstance: node,
	}
}

// nameOf returns the name of the event of an ID: the node's name, as in kubelet's events, and a hash of both.
func nameOf(node, id string) string {
	sum := sha256.Sum256([]byte(node + "\x00" + id))
	suffix := "." + hex.EncodeToString(sum[:8])
	if len(node)+len(suffix) > maxName {
		node = strings.TrimRight(node[:maxName-len(suffix)], "-.")
	}
	return node + suffix
}

// worded returns n in a wording (node-problem-detector, pkg/util: GenerateConditionChangeEvent).
func worded(n note, w finding.Wording, u finding.Update) note {
	n.Source = report.Text(w.Source, maxReason)
	if w.Condition.Type == "" || u.Finding.Severity != finding.Fatal {
		return n
	}
	truth, reason, message := "True", u.Finding.Reason, u.Finding.Message
	n.Type = corev1.EventTypeWarning
	if u.Kind == finding.Cleared {
		truth, reason, message = "False", w.Condition.HealthyReason, w.Condition.HealthyMessage
		n.Type = corev1.EventTypeNormal
	}
	n.Reason = report.Reason(reason, maxReason)
	n.Message = report.Text(fmt.Sprintf("Node condition %s is now: %s, reason: %s, message: %q", w.Condition.Type,
		truth, reason, message), maxMessage)
	return n
}
