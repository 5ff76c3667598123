package follow

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

const (
	maxEarly     = 1000 // Events kept for pods not seen yet
	maxEarlyText = 1024 // bytes

	maxRefused = 10_000           // owners that are followed at the same time
	quietFor   = 20 * time.Minute // a controller waits at most 1,000 s between two attempts
	// eventsDelayed is how long after a pod an Event of an earlier refusal is recognized as such.
	eventsDelayed = 2 * time.Minute
)

// pulledText is kubelet's: Successfully pulled image "a:1" in 2.5s (4.1s including waiting). Image size: 1234 bytes.
var pulledText = regexp.MustCompile(`in ([0-9.a-zµ]+)(?: \(([0-9.a-zµ]+) including waiting\))?(?:\. Image size: (\d+) bytes)?`)

// Event takes an Event of a pod. Of probes and hooks, it keeps only the fact: a pod's own program writes their texts.
func (f *Follower) Event(e *corev1.Event, listed bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
	m := record.Mark{Source: record.Own, Arrival: now, Late: listed || now.Before(f.late)}
	name := containerOf(e.InvolvedObject.FieldPath)
	uid := string(e.InvolvedObject.UID)
	if _, there := f.pods[uid]; !there && !listed {
		f.early = append(f.early, early{uid: uid, at: m, e: trimmed(e)})
		f.early = f.early[max(0, len(f.early)-maxEarly):]
	}
	for _, a := range f.acts[uid] {
		if listed && e.LastTimestamp.Time.Before(a.Timeline.Begin().Time.Add(-time.Second)) {
			continue
		}
		f.event(&a.Timeline, e, name, m)
		a.changed = true
	}
}

// early is an Event that arrived before its pod: they come in different streams.
type early struct {
	uid string
	at  record.Mark
	e   *corev1.Event
}

func trimmed(e *corev1.Event) *corev1.Event {
	return &corev1.Event{Type: e.Type, Reason: strings.Clone(e.Reason), Message: finding.Clip(strings.Clone(e.Message), maxEarlyText),
		InvolvedObject: corev1.ObjectReference{FieldPath: strings.Clone(e.InvolvedObject.FieldPath)}}
}

// recall takes the Events that arrived before their pod.
func (f *Follower) recall(uid string) {
	f.early = slices.DeleteFunc(f.early, func(x early) bool {
		if x.uid != uid {
			return false
		}
		for _, a := range f.acts[uid] {
			f.event(&a.Timeline, x.e, containerOf(x.e.InvolvedObject.FieldPath), x.at)
		}
		return true
	})
}

func (f *Follower) event(t *record.Timeline, e *corev1.Event, name string, m record.Mark) {
	c := t.Container(name)
	switch e.Reason {
	case "Pulling", "Pulled":
		pull(t, e, c, m)
	case "SuccessfulAttachVolume":
		delete(t.Marks, record.Attached) // the last one counts
		t.Set(record.Attached, m)
	case "Started":
		if c != nil && (t.Act == record.Creation || t.Replaces != "") {
			c.Started.Set(m)
		}
	case "Killing":
		if t.Act == record.Deletion {
			t.Set(record.KillNoticed, m)
		}
	case "Unhealthy":
		if c != nil && !strings.HasPrefix(e.Message, "Liveness") {
			c.Unhealthy = true
		}
	case "Failed":
		if strings.HasPrefix(e.Message, "Failed to pull image") {
			t.AddError(record.Error{Mark: m, From: "Failed:pull", Container: name, Text: redact(e.Message)})
		}
	case "BackOff", "FailedSync": // they repeat others
	case "FailedPostStartHook", "FailedPreStopHook":
		t.AddError(record.Error{Mark: m, From: e.Reason, Container: name})
	default:
		if e.Type != corev1.EventTypeWarning && e.Reason != "VolumePermissionChangeInProgress" {
			return
		}
		if _, known := reason.Match(f.chooser.Texts(), e.Reason, e.Message); !known {
			f.counts.UnknownTexts++
		}
		t.AddError(record.Error{Mark: m, From: strings.Clone(e.Reason), Container: name, Text: redact(e.Message)})
	}
}

func pull(t *record.Timeline, e *corev1.Event, c *record.Container, m record.Mark) {
	if c == nil {
		return
	}
	p := t.PullOf(c)
	switch {
	case p == nil:
		return
	case e.Reason == "Pulling":
		p.Began.Set(m)
		return
	}
	p.Ended.Set(m)
	if strings.Contains(e.Message, "already present") {
		p.Cached = true
		return
	}
	if parts := pulledText.FindStringSubmatch(e.Message); parts != nil {
		p.Took, _ = time.ParseDuration(parts[1])
		if whole, err := time.ParseDuration(parts[2]); err == nil {
			p.Waited = max(0, whole-p.Took)
		}
		p.Bytes, _ = strconv.ParseInt(parts[3], 10, 64)
	}
}

// containerOf returns the container of a field path: spec.containers{name}.
func containerOf(path string) string {
	_, rest, found := strings.Cut(path, "{")
	name, closed := strings.CutSuffix(rest, "}")
	if !found || !closed {
		return ""
	}
	return strings.Clone(name)
}

// Refused takes an Event FailedCreate of an owner of pods. All refusals of one owner are one act, until a pod of the
// owner is created, or the owner has been quiet for longer than controllers wait.
func (f *Follower) Refused(e *corev1.Event, listed bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive(now)
	if !createsPods(e) || listed && (f.config.Since.IsZero() || e.LastTimestamp.Time.Before(f.config.Since)) {
		return
	}
	m := record.Mark{Source: record.Own, Arrival: now, Late: listed || now.Before(f.late)}
	a := f.refusalOf(e.InvolvedObject.UID)
	if a == nil {
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
	if _, known := reason.Match(f.chooser.Texts(), e.Reason, text); !known {
		f.counts.UnknownTexts++
	}
	t.Set(record.Refused, m)
	delete(t.Marks, record.RefusedLast)
	t.Set(record.RefusedLast, m)
	delete(t.Marks, record.Admitted)
	if pod := f.newest[t.UID]; before(e, pod) {
		t.Set(record.Admitted, pod)
	}
	t.Refusals++
	t.AddError(record.Error{Mark: m, From: strings.Clone(e.Reason), Text: text})
	a.changed = true
}

// before reports whether the last refusal of an Event was before a pod was created: controllers send Events later than
// they create pods. In doubt within a second it was: who is refused again reports it again.
func before(e *corev1.Event, admitted record.Mark) bool {
	at := e.LastTimestamp.Time
	if at.IsZero() {
		at = e.EventTime.Time
	}
	return !at.IsZero() && !admitted.Time.IsZero() && !at.After(admitted.Time)
}

// createsPods reports whether the refused object is a pod: a CronJob creates Jobs.
func createsPods(e *corev1.Event) bool {
	return e.Reason == "FailedCreate" &&
		slices.Contains([]string{"ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"}, e.InvolvedObject.Kind)
}

func (f *Follower) refusalOf(uid types.UID) *Act {
	for _, a := range f.acts[string(uid)] {
		if a.Timeline.Act == record.Refusal {
			return a
		}
	}
	return nil
}

// admitted records that the apiserver has accepted a pod of an owner.
func (f *Follower) admitted(o observation) {
	ref := metav1.GetControllerOfNoCopy(o.p)
	if ref == nil {
		return
	}
	m := o.mark(o.p.CreationTimestamp, record.APIServer)
	if !o.late {
		f.newest[strings.Clone(string(ref.UID))] = m
	}
	if a := f.refusalOf(ref.UID); a != nil {
		a.Timeline.Set(record.Admitted, m)
		a.changed = true
	}
}

// forget drops the newest pods of owners whose Events are not to be expected any more.
func (f *Follower) forget(now time.Time) {
	maps.DeleteFunc(f.newest, func(_ string, m record.Mark) bool { return now.Sub(m.Arrival) > eventsDelayed })
}

// refusedStill reports whether further refusals belong to the act.
func refusedStill(t *record.Timeline, now time.Time) bool {
	return t.Act == record.Refusal && !t.At(record.Admitted).Known() && now.Sub(t.At(record.RefusedLast).Arrival) < quietFor
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
