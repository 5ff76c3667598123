package podstage

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// maxText bounds one text of an answer, in bytes.
const maxText = 600

func (a *Answer) sanitize() {
	for _, text := range []*string{&a.Namespace, &a.Name, &a.UID, &a.Blocker, &a.Holder, &a.Next} {
		*text = hosterr.Sanitize(*text, maxText)
	}
	for i := range a.Evidence {
		a.Evidence[i].Text = hosterr.Sanitize(a.Evidence[i].Text, maxText)
	}
}

// harmless matches text that a shell takes as one plain word.
var harmless = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// argument returns foreign text as an argument of a command that people may copy: never more than one word.
func argument(text string) string {
	if harmless.MatchString(text) {
		return text
	}
	return "NAME"
}

func (f Facts) kubectl(command string) string { return "kubectl -n " + f.Namespace + " " + command }

// reason describes an error for people; for a missing right, it names the right.
func reason(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsForbidden(err) || status.Status().Details == nil {
		return err.Error()
	}
	return "the agent has no right to read " + status.Status().Details.Kind + " (docs/security.md)"
}

func (f Facts) unit() string { return cmp.Or(f.Runtime.Name, "containerd") }

// journal is the command that finds the runtime's messages about the pod.
func (f Facts) journal() string {
	return "journalctl -u " + f.unit() + " -u kubelet | grep " + f.Name
}

// event returns the message of the latest event with one of some reasons.
func (f Facts) event(reasons ...string) string {
	var latest *corev1.Event
	for i := range f.Events {
		e := &f.Events[i]
		if slices.Contains(reasons, e.Reason) && (latest == nil || eventTime(e).After(eventTime(latest))) {
			latest = e
		}
	}
	if latest == nil {
		return ""
	}
	return latest.Message
}

func eventTime(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

func waiting(c corev1.ContainerStatus) string {
	if c.State.Waiting.Message == "" {
		return c.State.Waiting.Reason
	}
	return c.State.Waiting.Reason + ": " + c.State.Waiting.Message
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// since returns when a condition last changed; if the pod lacks it, when the pod was created.
func since(pod *corev1.Pod, kind corev1.PodConditionType) time.Time {
	if c := condition(pod, kind); c != nil && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return pod.CreationTimestamp.Time
}

func containers(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// isStatic reports whether kubelet has a pod from elsewhere than the apiserver, or a mirror stands for such a pod.
func isStatic(pod *corev1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api" || host.NodePodUID(pod) != string(pod.UID)
}

func short(id string) string { return id[:min(len(id), 13)] }

func (f Facts) processHolder() string {
	var names []string
	for _, p := range f.Local.Processes[:min(len(f.Local.Processes), 3)] {
		name := fmt.Sprintf("pid %d %s", p.PID, p.Comm)
		if p.Wchan != "" {
			name += " (state D in " + p.Wchan + ")"
		}
		names = append(names, name)
	}
	return more(names, len(f.Local.Processes))
}

func (f Facts) mountHolder() string {
	var names []string
	all := 0
	for _, m := range f.Local.Mounts {
		for _, h := range m.Holders {
			if all++; all > 3 {
				continue
			}
			of := "of no pod"
			if h.Pod != "" {
				of = "of pod " + h.Pod
			}
			names = append(names, fmt.Sprintf("pid %d %s (%s), %s", h.PID, h.Command, h.How, of))
		}
	}
	return more(names, all)
}

func more(names []string, all int) string {
	text := strings.Join(names, "; ")
	if all > len(names) {
		text += fmt.Sprintf(" and %d more", all-len(names))
	}
	return text
}

// traces names the pod's objects on the node.
func (f Facts) traces() string {
	var all []string
	add := func(n int, what string) {
		if n > 0 {
			all = append(all, fmt.Sprintf("%s: %d", what, n))
		}
	}
	l := f.Local
	add(len(f.Runtime.Sandboxes), "sandboxes")
	add(len(f.Runtime.Containers), "containers")
	add(len(l.Processes), "processes")
	if l.Directory != "" {
		all = append(all, "directory "+l.Directory)
	}
	add(len(l.Mounts), "mounts")
	add(len(l.Cgroups), "cgroups")
	add(len(l.Attachments), "network attachments")
	return strings.Join(all, ", ")
}

// unread names the sources that could not be read.
func (f Facts) unread() string {
	var all []string
	for _, e := range f.evidence() {
		if e.Failed {
			all = append(all, e.Source+": "+e.Text)
		}
	}
	return strings.Join(all, "; ")
}

// evidence lists each source's statement.
func (f Facts) evidence() []Evidence {
	all := []Evidence{f.apiserverEvidence(), sourceEvidence("kubelet", f.Kubelet), f.runtimeEvidence(),
		{Source: "node", Text: cmp.Or(Facts{Local: f.Local}.traces(), "has nothing of it")}}
	for _, e := range []struct {
		source string
		err    error
	}{{"kubelet's directory", f.Local.DirectoryErr}, {"mounts", f.Local.MountsErr}, {"volumes", f.Local.MissingErr},
		{"cgroups", f.Local.CgroupsErr}, {"network attachments", f.Local.AttachmentsErr}, {"holders", f.Local.HoldersErr},
		{"events", f.EventsErr}, {"CSI drivers", f.Drivers.Err}} {
		if e.err != nil {
			all = append(all, Evidence{e.source, e.err.Error(), true})
		}
	}
	return slices.Concat(all, f.nodeEvidence(), f.eventsEvidence())
}

// nodeEvidence lists the pod's objects on the node, one by one.
func (f Facts) nodeEvidence() (all []Evidence) {
	for _, e := range []Evidence{{Source: "processes", Text: f.processHolder()},
		{Source: "holders", Text: f.mountHolder()},
		{Source: "network attachments", Text: strings.Join(f.Local.Attachments, ", ")},
		{Source: "volumes that are not set up", Text: strings.Join(f.Local.Missing, ", ")},
		{Source: "earlier pods of the name, of which something is here", Text: strings.Join(f.Earlier, ", ")}} {
		if e.Text != "" {
			all = append(all, e)
		}
	}
	for _, m := range f.Local.Mounts[:min(len(f.Local.Mounts), maxMounts)] {
		all = append(all, Evidence{Source: "mount", Text: m.Point + " (" + m.FSType + " of " + m.Source + ")"})
	}
	return all
}

func (f Facts) runtimeEvidence() Evidence {
	switch {
	case !f.Runtime.Asked:
		return Evidence{"runtime", "was not asked", true}
	case f.Runtime.Err != nil:
		return Evidence{"runtime", f.Runtime.Err.Error(), true}
	}
	return Evidence{Source: "runtime", Text: cmp.Or(runtimeText(f.Runtime), "has nothing of it")}
}

func (f Facts) apiserverEvidence() Evidence {
	e := sourceEvidence("apiserver", f.Apiserver)
	if f.Apiserver.lacks() {
		e.Text = "has no such pod on node " + f.Node
		if f.Elsewhere.has() {
			e.Text = fmt.Sprintf("has it on node %q", f.Elsewhere.Pod.Spec.NodeName)
		}
	}
	return e
}

func sourceEvidence(name string, s Source) Evidence {
	switch {
	case !s.Asked:
		return Evidence{name, "was not asked", true}
	case s.Err != nil:
		return Evidence{name, s.Err.Error(), true}
	case s.Pod == nil:
		return Evidence{Source: name, Text: "does not have it"}
	}
	text := string(s.Pod.Status.Phase)
	if s.Pod.DeletionTimestamp != nil {
		text += ", deleted; its grace period ends at " + s.Pod.DeletionTimestamp.UTC().Format(time.RFC3339)
	}
	for _, c := range containers(s.Pod) {
		text += "; " + c.Name + " " + stateText(c)
	}
	return Evidence{Source: name, Text: text}
}

func stateText(c corev1.ContainerStatus) string {
	switch {
	case c.State.Waiting != nil:
		return "waits: " + waiting(c)
	case c.State.Running != nil:
		return "runs since " + c.State.Running.StartedAt.UTC().Format(time.RFC3339)
	case c.State.Terminated != nil:
		return exited(c.State.Terminated)
	}
	return "has no state"
}

func runtimeText(r Runtime) string {
	var all []string
	for _, s := range r.Sandboxes {
		state := "not ready"
		if s.State == cri.PodSandboxState_SANDBOX_READY {
			state = "ready"
		}
		all = append(all, fmt.Sprintf("sandbox %s %s, attempt %d", short(s.Id), state, s.GetMetadata().GetAttempt()))
	}
	for _, c := range r.Containers {
		state := strings.ToLower(strings.TrimPrefix(c.State.String(), "CONTAINER_"))
		all = append(all, fmt.Sprintf("container %s %s %s", c.GetMetadata().GetName(), short(c.Id), state))
	}
	if r.NetworkNotReady != "" {
		all = append(all, "network is not ready: "+r.NetworkNotReady)
	}
	return strings.Join(all, "; ")
}

// Bounds of the evidence: the latest events, the first mounts.
const maxEvents, maxMounts = 5, 20

func (f Facts) eventsEvidence() []Evidence {
	events := slices.Clone(f.Events)
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return eventTime(&b).Compare(eventTime(&a)) })
	var all []Evidence
	for _, e := range events[:min(len(events), maxEvents)] {
		all = append(all, Evidence{Source: "event", Text: eventTime(&e).UTC().Format(time.RFC3339) + " " + e.Reason +
			": " + e.Message})
	}
	return all
}
