package follow

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
)

func TestDelivered(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a"), 0.3)
	w.shows(newPod("a", bound), 2)
	w.shows(newPod("a", readyAt(20)), 20.2)
	w.until(700)
	if w.outcomes() != "creation delivered" || len(w.open) != 0 || w.Counts().Open != 0 || w.Counts().Pods != 1 {
		t.Errorf("%s, open %v, %+v", w.outcomes(), w.open, w.Counts())
	}
	if a := w.judged[0].Timeline; a.OwnerKind != "Deployment" || a.OwnerName != "web" {
		t.Errorf("owner %s %s", a.OwnerKind, a.OwnerName)
	}
}

// A miss is reported by T + 5 s with its reason at that time; the reason is refined once, ten minutes later.
func TestMissedAndRefined(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a"), 0.3)
	w.shows(newPod("a", waiting("ErrImagePull", `failed to pull and unpack image "a:1": failed to do request: dial tcp 10.0.0.1:443: connect: connection refused`)), 5)
	w.until(66)
	if w.outcomes() != "creation missed RegistryUnavailable" {
		t.Fatal(w.outcomes())
	}
	if d := w.judged[0].JudgedAt.Sub(start); d > 65*time.Second || d < time.Minute {
		t.Errorf("judged after %v", d)
	}
	w.until(800)
	if len(w.judged) != 1 || len(w.final) != 1 || w.final[0].Final.Reason != "RegistryUnavailable" || w.final[0].Final.Class != reason.System || len(w.open) != 0 {
		t.Errorf("judged %d, final %+v, open %v", len(w.judged), w.final, w.open)
	}
}

// Excluded, refused and early-ended acts have the right outcomes.
func TestOutcomes(t *testing.T) {
	young := func(w *world) {
		w.Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: start.Add(-time.Minute)}}}}}, false, start)
	}
	tests := map[string]struct {
		before func(*world)
		shows  []*corev1.Pod // at seconds 1, 11, 21, ...
		gone   bool
		want   string
	}{
		"static":               {nil, []*corev1.Pod{newPod("a", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "x" })}, false, "creation excluded"},
		"namespace":            {nil, []*corev1.Pod{newPod("a", func(p *corev1.Pod) { p.Namespace = "dev" })}, false, "creation excluded"},
		"DaemonSet, new node":  {young, []*corev1.Pod{newPod("a", bound, func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })}, false, "creation excluded"},
		"refused":              {nil, []*corev1.Pod{newPod("a", bound), newPod("a", bound, func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfcpu" })}, false, "creation missed RejectedByNode"},
		"deleted before T":     {nil, []*corev1.Pod{newPod("a"), newPod("a", terminating(0, 11))}, true, "creation excluded, deletion delivered"},
		"deletion hangs":       {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), terminating(5, 11))}, false, "creation delivered, deletion missed StopNotNoticed"},
		"finalizer":            {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", func(p *corev1.Pod) { p.Finalizers = []string{"x/y"} }, terminating(0, 11))}, false, "creation delivered, deletion missed FinalizerHeld"},
		"job ran":              {nil, []*corev1.Pod{newPod("a", running(1), func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })}, false, "creation delivered"},
		"bound at creation":    {nil, []*corev1.Pod{newPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n" })}, false, "creation missed KubeletSlow"},
		"gated":                {nil, []*corev1.Pod{newPod("a", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} })}, false, ""},
		"upgrade in first min": {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), image("a:2")), newPod("a", image("a:2"), readyAt(20), observed)}, false, "creation delivered, upgrade delivered"},
		"resize waits":         {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), larger, observed, deferred)}, false, "creation delivered, upgrade missed ResizeDeferred"},
		"resize, then a crash": {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), larger, observed, deferred), newPod("a", readyAt(20), larger, observed, deferred)}, false, "creation delivered, upgrade missed ResizeDeferred"},
		"resized":              {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), larger, observed, deferred), newPod("a", readyAt(1), larger, observed)}, false, "creation delivered, upgrade delivered"},
		"upgrade not noticed":  {nil, []*corev1.Pod{newPod("a", readyAt(1)), newPod("a", readyAt(1), image("a:2"))}, false, "creation delivered, upgrade missed KubeletSlow"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{ExcludeNamespaces: []string{"dev"}})
			if tt.before != nil {
				tt.before(w)
			}
			at := 1.0
			for _, p := range tt.shows {
				w.shows(p, at)
				at += 10
			}
			if tt.gone {
				w.Pod(tt.shows[len(tt.shows)-1], Gone, second(at-5))
			}
			w.until(100)
			if w.outcomes() != tt.want {
				t.Errorf("%q, want %q", w.outcomes(), tt.want)
			}
		})
	}
}

func image(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Image, p.Generation = name, 2 }
}

func larger(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Requests, p.Generation = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}, 2
}

// deferred is a resize for which the node has no room.
func deferred(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred",
		Message: "Node didn't have enough resource: cpu"})
}

func observed(p *corev1.Pod) { p.Status.ObservedGeneration = p.Generation }

// A pod that the watch did not show for 90 s was ready in time: no miss. It is either proven to be in time, or unknown.
func TestWatchIsFrozen(t *testing.T) {
	for name, skewKnown := range map[string]bool{"clock measured": true, "clock not measured": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{})
			if skewKnown {
				other := newPod("other", readyAt(5))
				other.CreationTimestamp = metav1.Time{Time: second(5)}
				w.shows(other, 5.1)
			}
			w.shows(newPod("a"), 10)
			w.silent(100)
			w.shows(newPod("a", readyAt(30)), 100.5)
			w.until(200)
			want := "creation unknown"
			if skewKnown {
				want = "creation delivered, creation delivered"
			}
			if w.outcomes() != want {
				t.Errorf("%s, want %s", w.outcomes(), want)
			}
		})
	}
	t.Run("only the pods", func(t *testing.T) { // the Leases continue
		w := newWorld(Config{})
		w.shows(newPod("a"), 10)
		w.Broken(second(11))
		w.until(100)
		w.Synced(second(100), false)
		w.Pod(newPod("a", readyAt(30)), Watched, second(100.5))
		w.until(200)
		if w.outcomes() != "creation unknown" {
			t.Error(w.outcomes())
		}
	})
	t.Run("never ready", func(t *testing.T) {
		w := newWorld(Config{})
		w.shows(newPod("a"), 10)
		w.silent(150)
		if w.outcomes() != "" {
			t.Errorf("%s: the watch was behind", w.outcomes())
		}
		w.until(160)
		if w.outcomes() != "creation missed SchedulerSlow" {
			t.Error(w.outcomes())
		}
	})
}

// A list after a gap: pods missing from it are gone, without observed deletions; names may be those of new pods.
func TestList(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a", readyAt(1)), 1)
	w.shows(newPod("b", readyAt(1)), 1)
	w.Broken(second(2))
	w.Pod(newPod("b", readyAt(1)), Listed, second(60))
	again := newPod("a")
	again.UID, again.CreationTimestamp = "another", metav1.Time{Time: second(50)}
	w.Pod(again, Listed, second(60))
	w.Synced(second(60), true)
	w.until(180)
	if got := w.outcomes(); !strings.Contains(got, "deletion unknown") || !strings.Contains(got, "creation missed SchedulerSlow") || len(w.judged) != 4 {
		t.Error(got)
	}
}

// After a restart, the saved acts continue; acts from before the first start are not counted.
func TestRestart(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a"), 1)
	w.shows(newPod("b"), 1)
	w.shows(newPod("old", readyAt(1)), 1)
	w.until(10)
	var open []Act
	for _, a := range w.open {
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var again Act
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		open = append(open, again)
	}
	next := New(Config{Promised: time.Minute, Since: start, Open: open, Judged: func(k Key) bool { return k.UID == "uid-old" }})
	v := &world{Follower: next, now: 30, open: map[string]Act{}}
	v.Pod(newPod("a", readyAt(20)), Listed, second(30))
	v.Pod(newPod("old", readyAt(1)), Listed, second(30))
	ancient := newPod("ancient")
	ancient.CreationTimestamp = metav1.Time{Time: start.Add(-time.Hour)}
	v.Pod(ancient, Listed, second(30))
	v.Synced(second(30), true)
	v.until(200)
	got := map[string]string{}
	for _, a := range v.judged {
		got[a.Timeline.Name] += string(a.Timeline.Act) + " " + string(a.Verdict.Outcome) + ";"
	}
	if len(got) != 2 || got["a"] != "creation delivered;" || !strings.HasPrefix(got["b"], "creation excluded") {
		t.Errorf("%v", got)
	}
}

// No possible secret of the specification is kept: no environment, argument, annotation; no text of a probe or a hook;
// no command in the runtime's messages.
func TestNothingSecretIsKept(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a"), 1)
	w.shows(newPod("a", waiting("RunContainerError", `unable to start container process: error during container init: exec: "`+secret+`": executable file not found in $PATH`)), 2)
	for _, e := range []string{"Unhealthy", "FailedPostStartHook", "Failed", "FailedSomething"} {
		text := "Readiness probe failed: " + secret
		if e == "FailedSomething" {
			text = `failed: exec: "` + secret
		}
		w.Event(&corev1.Event{Reason: e, Type: "Warning", Message: text,
			InvolvedObject: corev1.ObjectReference{UID: "uid-a", FieldPath: "spec.containers{c}"}}, false, second(3))
	}
	w.until(70)
	text, err := json.Marshal([]any{w.judged, w.open, w.Find("uid-a", "", "")})
	if err != nil || strings.Contains(string(text), secret) || !strings.Contains(string(text), "CommandFailed") {
		t.Errorf("%v: %s", err, text)
	}
}

func TestPullText(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a", bound), 1)
	for reason, text := range map[string]string{"Pulling": `Pulling image "a:1"`, "Pulled": `Successfully pulled image "a:1" in 2.5s (12.5s including waiting). Image size: 1234 bytes.`} {
		w.Event(&corev1.Event{Reason: reason, Message: text, InvolvedObject: corev1.ObjectReference{UID: "uid-a", FieldPath: "spec.containers{c}"}}, false, second(2))
	}
	p := w.Find("uid-a", "", "")[0].Timeline.Pulls
	if len(p) != 1 || p[0].Took != 2500*time.Millisecond || p[0].Waited != 10*time.Second || p[0].Bytes != 1234 {
		t.Errorf("%+v", p)
	}
}

// A gap lasts from the first failure, or the begin of the first list, until the watch continues: what arrives right after a
// long one is late.
func TestGapWithRetries(t *testing.T) {
	late := func(w *world, at float64) bool {
		w.Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u", CreationTimestamp: metav1.NewTime(second(at))}}, Watched, second(at))
		return w.Find("u", "", "")[0].Timeline.Begin().Late
	}
	first := &world{Follower: New(Config{Promised: time.Minute})}
	first.Broken(second(0))
	first.Synced(second(5), true)
	if !late(first, 5.1) {
		t.Error("after a first list of five seconds: in time")
	}
	again := newWorld(Config{})
	again.Broken(second(1))
	again.Broken(second(3))
	again.Synced(second(4), false)
	if !late(again, 4.1) {
		t.Error("after two failures: in time")
	}
	short := newWorld(Config{})
	short.Broken(second(1))
	short.Synced(second(1.5), false)
	if late(short, 1.6) {
		t.Error("after a short gap: late")
	}
}
