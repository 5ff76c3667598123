package follow

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

const (
	maxEarly     = 1000 // Events kept for pods not seen yet
	maxEarlyText = 1024 // bytes

	maxRefused = 10_000           // owners that are followed at the same time
	quietFor   = 20 * time.Minute // a controller waits at most 1,000 s between two attempts
	// combined begins the text of an Event for many, from the tenth on. Its time is that of its making: a busy controller's
	// is long after the refusal.
	combined = "(combined from similar events)"
	// eventsDelayed is how long after a pod an Event of an earlier refusal is recognized as such.
	eventsDelayed = 2 * time.Minute
)

// pulledText is kubelet's: Successfully pulled image "a:1" in 2.5s (4.1s including waiting). Image size: 1234 bytes.
var pulledText = regexp.MustCompile(`in ([0-9.a-zµ]+)(?: \(([0-9.a-zµ]+) including waiting\))?(?:\. Image size: (\d+) bytes)?`)

// Event takes an Event of a pod. Of probes and hooks, it keeps only the fact: a pod's own program writes their texts.
func (f *Follower) Event(e *corev1.Event, listed bool, now time.Time) {
	defer f.arrives(now)()
	_, container, _ := strings.Cut(strings.TrimSuffix(e.InvolvedObject.FieldPath, "}"), "{") // spec.containers{name}
	said := record.Error{Mark: record.Mark{Source: record.Own, Arrival: now, Late: listed || now.Before(f.late)}, From: strings.Clone(e.Reason),
		Container: strings.Clone(container), Text: e.Message}
	uid, warning := string(e.InvolvedObject.UID), e.Type == corev1.EventTypeWarning
	if _, there := f.pods[uid]; !there && !listed {
		kept := said
		kept.Text = finding.Clip(strings.Clone(said.Text), maxEarlyText)
		f.early = append(f.early, early{strings.Clone(uid), warning, kept})
		f.early = f.early[max(0, len(f.early)-maxEarly):]
	}
	for _, a := range f.acts[uid] {
		if listed && e.LastTimestamp.Time.Before(a.Timeline.Begin().Time.Add(-time.Second)) {
			continue
		}
		f.event(&a.Timeline, said, warning)
		a.changed = true
	}
}

// early is an Event that arrived before its pod: they come in different streams.
type early struct {
	uid     string
	warning bool
	said    record.Error
}

// recall takes the Events that arrived before their pod.
func (f *Follower) recall(uid string) {
	f.early = slices.DeleteFunc(f.early, func(x early) bool {
		if x.uid != uid {
			return false
		}
		for _, a := range f.acts[uid] {
			f.event(&a.Timeline, x.said, x.warning)
		}
		return true
	})
}

func (f *Follower) event(t *record.Timeline, e record.Error, warning bool) {
	c := t.Container(e.Container)
	switch e.From {
	case "Pulling", "Pulled":
		if c != nil {
			pull(t.PullOf(c), e)
		}
		return
	case "SuccessfulAttachVolume":
		delete(t.Marks, record.Attached) // the last one counts
		t.Set(record.Attached, e.Mark)
		return
	case "Started":
		if c != nil && (t.Act == record.Creation || t.Replaces != "") {
			c.Started.Set(e.Mark)
		}
		return
	case "Killing":
		if t.Act == record.Deletion {
			t.Set(record.KillNoticed, e.Mark)
		}
		return
	case "Unhealthy":
		if c != nil && !strings.HasPrefix(e.Text, "Liveness") {
			c.Unhealthy = true
		}
		return
	case "BackOff", "FailedSync": // they repeat others
		return
	case "Failed":
		if !strings.HasPrefix(e.Text, "Failed to pull image") {
			return
		}
		e.From = "Failed:pull"
	case "FailedPostStartHook", "FailedPreStopHook":
		e.Text = ""
	default:
		if !warning && e.From != "VolumePermissionChangeInProgress" {
			return
		}
		if _, known := reason.Match(e.From, e.Text); !known {
			f.counts.UnknownTexts++
		}
	}
	e.Text = redact(e.Text)
	t.AddError(e)
}

// pull takes an Event of a pull.
func pull(p *record.Pull, e record.Error) {
	if e.From == "Pulling" {
		p.Began.Set(e.Mark)
		return
	}
	p.Ended.Set(e.Mark)
	if strings.Contains(e.Text, "already present") {
		p.Cached = true
		return
	}
	if parts := pulledText.FindStringSubmatch(e.Text); parts != nil {
		p.Took, _ = time.ParseDuration(parts[1])
		if whole, err := time.ParseDuration(parts[2]); err == nil {
			p.Waited = max(0, whole-p.Took)
		}
		p.Bytes, _ = strconv.ParseInt(parts[3], 10, 64)
	}
}

// Refused takes an Event FailedCreate of an owner of pods. All refusals of one owner are one act, until a pod of the
// owner is created, or the owner has been quiet for longer than controllers wait.
func (f *Follower) Refused(e *corev1.Event, listed bool, now time.Time) {
	defer f.arrives(now)()
	createsPods := []string{"ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"} // a CronJob creates Jobs
	if e.Reason != "FailedCreate" || !slices.Contains(createsPods, e.InvolvedObject.Kind) ||
		listed && (f.config.Since.IsZero() || e.LastTimestamp.Time.Before(f.config.Since)) {
		return
	}
	// Controllers send Events later than they create pods. In doubt within a second, a refusal was before the newest pod: who is
	// refused again reports it again.
	at, pod := e.LastTimestamp.Time, f.newest[string(e.InvolvedObject.UID)]
	if at.IsZero() {
		at = e.EventTime.Time
	}
	before := !pod.Time.IsZero() && (strings.HasPrefix(e.Message, combined) || !at.IsZero() && !at.After(pod.Time))
	m := record.Mark{Source: record.Own, Arrival: now, Late: listed || now.Before(f.late)}
	a := f.refusalOf(e.InvolvedObject.UID)
	if a == nil {
		if before && pod.ended { // its act has its verdict
			return
		}
		if f.refusals >= maxRefused {
			f.counts.UnfollowedRefusals++
			return
		}
		o := &e.InvolvedObject
		a = &Act{Timeline: record.Timeline{Act: record.Refusal, UID: strings.Clone(string(o.UID)), Generation: now.UnixNano(),
			Namespace: f.share(strings.Clone(o.Namespace)), Name: strings.Clone(o.Name), OwnerKind: f.share(strings.Clone(o.Kind)),
			OwnerName: strings.Clone(o.Name), Exclude: f.excluded(o.Namespace)}}
		f.add(a)
	}
	t := &a.Timeline
	text := withoutValues(e.Message)
	if _, known := reason.Match(e.Reason, text); !known {
		f.counts.UnknownTexts++
	}
	t.Set(record.Refused, m)
	delete(t.Marks, record.RefusedLast)
	t.Set(record.RefusedLast, m)
	delete(t.Marks, record.Admitted)
	if before {
		t.Set(record.Admitted, pod.Mark)
		pod.ended = true
		f.newest[t.UID] = pod
	}
	t.Refusals++
	t.AddError(record.Error{Mark: m, From: strings.Clone(e.Reason), Text: text})
	a.changed = true
}

// newest is the newest pod of an owner.
type newest struct {
	record.Mark
	ended bool // it has ended a refusal
}

func (f *Follower) refusalOf(uid types.UID) *Act {
	acts := f.acts[string(uid)]
	if i := slices.IndexFunc(acts, func(a *Act) bool { return a.Timeline.Act == record.Refusal }); i >= 0 {
		return acts[i]
	}
	return nil
}

// admitted records that the apiserver has accepted a pod of an owner.
func (f *Follower) admitted(o observation) {
	ref := metav1.GetControllerOfNoCopy(o.p)
	if ref == nil {
		return
	}
	m, a := o.mark(o.p.CreationTimestamp, record.APIServer), f.refusalOf(ref.UID)
	if !o.late {
		f.newest[strings.Clone(string(ref.UID))] = newest{m, a != nil}
	}
	if a != nil {
		a.Timeline.Set(record.Admitted, m)
		a.changed = true
	}
}

// withoutValues removes text that may repeat the pod's specification: a webhook's or policy's text, and field values.
func withoutValues(text string) string {
	for _, sign := range []string{"denied the request", "denied request", " value: "} {
		if before, _, found := strings.Cut(text, sign); found {
			text = before + sign + " …"
		}
	}
	return strings.Clone(text)
}

const (
	outside     = 5 * time.Second // a time of the node may lie so far outside of the act: clocks are measured from whole seconds
	maxSays     = 512             // bytes
	maxFindings = 16
)

// Evidence takes what a node's agent reported about a pod. It reports false, and counts that, if the evidence cannot be true: the pod is
// unknown or on another node, or a time lies outside of the act.
func (f *Follower) Evidence(e event.Evidence, node string, now time.Time) (taken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.acts[e.UID] {
		t := &a.Timeline
		concerned := map[record.Act]bool{record.Creation: t.Act == record.Creation || t.Replaces != "", record.Deletion: t.Act == record.Deletion}
		if t.Node != node || t.Namespace != e.Namespace || t.Name != e.Name || !concerned[record.Act(e.Act)] {
			continue
		}
		f.applySkews(t)
		if witnessed(t, e, now) {
			a.changed, taken = true, true
		}
	}
	if taken {
		f.counts.Evidence++
	} else {
		f.counts.EvidenceIgnored++
	}
	return taken
}

// witnessed converts an evidence to marks of a timeline: of the node's clock, with an estimated arrival. It reports false,
// and sets none, if a time lies outside of the act.
func witnessed(t *record.Timeline, e event.Evidence, now time.Time) bool {
	from, plausible := t.Begin().Arrival.Add(-outside), true
	mark := func(at time.Time) record.Mark {
		if at.IsZero() {
			return record.Mark{}
		}
		ours := at.Add(t.Skews[record.Node])
		plausible = plausible && !ours.Before(from) && !ours.After(now.Add(outside))
		return record.Mark{Time: at, Source: record.Node, Arrival: record.Earlier(ours, now), Late: true}
	}
	marks, images := map[record.Point]record.Mark{}, map[string]record.Mark{} // images by container: a created one has its image
	switch record.Act(e.Act) {
	case record.Creation:
		marks[record.Mounted], marks[record.SandboxReady] = mark(e.SandboxRequested), mark(e.SandboxCreated)
		if !e.SandboxReady.IsZero() {
			marks[record.SandboxReady] = mark(e.SandboxReady)
		}
		for _, c := range e.Containers {
			images[c.Name] = mark(c.Created)
		}
	case record.Deletion:
		marks[record.SandboxStopped], marks[record.Unmounted] = mark(e.SandboxStopped), mark(e.Unmounted)
	}
	if !plausible {
		return false
	}
	for p, m := range marks {
		t.Set(p, m)
	}
	for name, m := range images {
		if c := t.Container(name); c != nil {
			c.Imaged.Set(m)
		}
	}
	t.Says = record.NodeSays{Mark: record.Mark{Source: record.Own, Arrival: now}, Text: finding.Clip(strings.Clone(e.Text), maxSays)}
	if e.Ended.IsZero() {
		t.Says.Stage = finding.Clip(strings.Clone(e.Stage), maxSays)
	}
	for _, found := range e.Findings[:min(len(e.Findings), maxFindings)] {
		t.Says.Findings = append(t.Says.Findings, finding.Clip(strings.Clone(found), maxSays))
	}
	return true
}
