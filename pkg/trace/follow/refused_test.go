package follow

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const quota = `Error creating: pods "web-abc-x1" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3`

// refuses adds two refusals, like a retrying controller.
func (w *world) refuses(kind, owner, text string, s float64) {
	w.refusesOnce(kind, owner, text, s)
	w.refusesOnce(kind, owner, text, s+3)
}

func (w *world) refusesOnce(kind, owner, text string, s float64) {
	w.until(float64(int(s)))
	w.Refused(refusal(kind, owner, text), false, second(s))
}

// refusedAt adds a refusal whose Event arrives later.
func (w *world) refusedAt(kind, owner, text string, arrival, at float64) {
	w.until(arrival)
	e := refusal(kind, owner, text)
	e.LastTimestamp = metav1.NewTime(second(at))
	w.Refused(e, false, second(arrival))
}

func refusal(kind, owner, text string) *corev1.Event {
	return &corev1.Event{Reason: "FailedCreate", Type: "Warning", Message: text, InvolvedObject: corev1.ObjectReference{Kind: kind,
		Namespace: "default", Name: owner, UID: types.UID("uid-" + owner)}}
}

func createdAt(s float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(second(s)) }
}

func owned(owner string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].UID = types.UID("uid-" + owner) }
}

func TestRefusals(t *testing.T) {
	tests := map[string]struct {
		play func(*world)
		want string
	}{
		"quota":                     {func(w *world) { w.refuses("ReplicaSet", "web", quota, 1) }, "refusal missed QuotaExceeded"},
		"once, and no pod was seen": {func(w *world) { w.refusesOnce("ReplicaSet", "web", quota, 1) }, "refusal unknown"},
		"StatefulSet": {func(w *world) {
			w.refuses("StatefulSet", "web", "create Pod web-0 in StatefulSet web failed error: "+quota, 1)
		}, "refusal missed QuotaExceeded"},
		"DaemonSet": {func(w *world) { w.refuses("DaemonSet", "web", quota, 1) }, "refusal missed QuotaExceeded"},
		"Job": {func(w *world) {
			w.refuses("Job", "web", `Error creating: Internal error occurred: failed calling webhook "a": Post "https://a": EOF`, 1)
		}, "refusal missed AdmissionUnavailable"},
		"a text that is not known": {func(w *world) {
			w.refuses("ReplicaSet", "web", `Error creating: pods "a" something new`, 1)
		}, "refusal missed CreateFailed"},
		"the last text decides": {func(w *world) {
			w.refuses("ReplicaSet", "web", `pods "a": etcdserver: request timed out`, 1)
			w.refuses("ReplicaSet", "web", quota, 5)
		}, "refusal missed QuotaExceeded"},
		"a CronJob makes no pod": {func(w *world) { w.refuses("CronJob", "web", "Error creating job: exceeded quota", 1) }, ""},
		"overcome": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), readyAt(20)), 20)
		}, "creation delivered, refusal delivered"},
		"a pod of another": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("x"), readyAt(20)), 20)
		}, "creation delivered, refusal missed QuotaExceeded"},
		"refused again after a pod": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), readyAt(20)), 20)
			w.refuses("ReplicaSet", "web", quota, 30)
		}, "creation delivered, refusal missed QuotaExceeded"},
		"an Event that arrives after the pod": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", quota, 22, 19)
		}, "creation delivered, refusal delivered"},
		"all Events arrive after the pod": {func(w *world) {
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", quota, 21, 17)
			w.refusedAt("ReplicaSet", "web", quota, 24, 20)
		}, "creation delivered, refusal delivered"},
		"an Event that arrives after the verdict": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", quota, 90, 19)
		}, "creation delivered, refusal delivered"},
		"Events that arrive before and after the verdict": {func(w *world) {
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", quota, 21, 17)
			w.refusedAt("ReplicaSet", "web", quota, 90, 20)
		}, "creation delivered, refusal delivered"},
		"refused again by the Event's time": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", quota, 23, 22)
		}, "creation delivered, refusal missed QuotaExceeded"},
		"a combined Event after the pod": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			w.refusedAt("ReplicaSet", "web", combined+": "+quota, 30, 27)
		}, "creation delivered, refusal delivered"},
		"refused again, as combined Events tell": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), createdAt(20), readyAt(20)), 20)
			for at := 25.; at < 190; at += 15 {
				w.refusedAt("ReplicaSet", "web", combined+": "+quota, at+2, at)
			}
			w.until(250)
		}, "creation delivered, refusal delivered, refusal missed QuotaExceeded"},
		"overcome after the deadline": {func(w *world) {
			w.refuses("ReplicaSet", "web", quota, 1)
			w.shows(newPod("a", owned("web"), readyAt(80)), 80)
		}, "refusal missed QuotaExceeded, creation delivered"},
		"namespace is excluded": {func(w *world) {
			w.Refused(&corev1.Event{Reason: "FailedCreate", Message: quota,
				InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: "dev", UID: "u"}}, false, second(1))
		}, "refusal excluded"},
		"listed, and older than us": {func(w *world) {
			w.Refused(&corev1.Event{Reason: "FailedCreate", Message: quota,
				InvolvedObject: corev1.ObjectReference{Kind: "Job", UID: "u"}}, true, second(1))
		}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{ExcludeNamespaces: []string{"dev"}})
			tt.play(w)
			w.until(200)
			if w.outcomes() != tt.want {
				t.Errorf("%q, want %q", w.outcomes(), tt.want)
			}
		})
	}
}

// An owner refused ten thousand times counts once, over hours and across a restart; its record does not grow.
func TestRefusedTenThousandTimes(t *testing.T) {
	w := newWorld(Config{})
	for i := range 10_000 {
		w.refusesOnce("ReplicaSet", "web", strings.Replace(quota, "x1", fmt.Sprint(i), 1), float64(i))
	}
	w.until(10_000)
	if w.outcomes() != "refusal missed QuotaExceeded" || len(w.open) != 1 || w.Counts().Acts[sli.Count{Act: record.Refusal, Outcome: verdict.Missed, Class: reason.User, Reason: "QuotaExceeded"}] != 1 {
		t.Fatalf("%s, open %d", w.outcomes(), len(w.open))
	}
	var open []Act
	for _, a := range w.open {
		text, err := json.Marshal(a)
		if err != nil || len(text) > 2000 || a.Timeline.Refusals != 10_000 {
			t.Errorf("%v: %d bytes, %d refusals", err, len(text), a.Timeline.Refusals)
		}
		open = append(open, a)
	}
	again := &world{Follower: New(Config{Open: open, Since: start}), now: 10_000, open: map[string]Act{}}
	again.Synced(second(10_000), true)
	again.refusesOnce("ReplicaSet", "web", quota, 10_010)
	again.until(10_100)
	if again.outcomes() != "" {
		t.Errorf("%s after a restart", again.outcomes())
	}
	// The act ends after a controller's longest pause, and the next refusal starts another.
	w.until(12_000)
	if len(w.final) != 1 || len(w.open) != 0 {
		t.Fatalf("final %d, open %d", len(w.final), len(w.open))
	}
	w.refuses("ReplicaSet", "web", quota, 12_001)
	w.until(12_100)
	if w.outcomes() != "refusal missed QuotaExceeded, refusal missed QuotaExceeded" {
		t.Error(w.outcomes())
	}
}

// Refused owners beyond the limit are counted and not followed.
func TestTooManyRefusedOwners(t *testing.T) {
	w := newWorld(Config{})
	for i := range maxRefused + 5 {
		w.refusesOnce("Job", fmt.Sprint(i), quota, 0)
	}
	if c := w.Counts(); c.Open != maxRefused || c.UnfollowedRefusals != 5 {
		t.Errorf("%+v", c)
	}
}

// A webhook's text and field values may repeat the pod's environment.
func TestNothingSecretOfRefusals(t *testing.T) {
	for _, text := range []string{`admission webhook "a.example" denied the request: PASSWORD=` + secret,
		`pods "a" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ` + secret,
		`Pod "a" is invalid: spec.containers[0].env[0].name: Invalid value: "` + secret + `": must be a name`} {
		w := newWorld(Config{})
		w.refuses("ReplicaSet", "web", text, 1)
		w.until(70)
		kept, err := json.Marshal([]any{w.judged, w.open})
		if err != nil || strings.Contains(string(kept), secret) || len(w.judged) != 1 || w.judged[0].First.Class != "user" {
			t.Errorf("%v: %s", err, kept)
		}
	}
}
