package follow

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// of makes the pod one of a StatefulSet or DaemonSet, with a UID of its own.
func of(kind, uid string, created float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.UID, p.CreationTimestamp = types.UID(uid), metav1.Time{Time: second(created)}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "db", Controller: new(true)}}
	}
}

// A pod that takes the place of another is an upgrade, from the request of the old pod's deletion until the new one is
// ready; the stop of the old containers is the user's time.
func TestReplacement(t *testing.T) {
	const stopped = 40
	tests := map[string]struct {
		kind, name string // of the new pod
		created    float64
		ready      float64
		lastOld    float64 // when the old one was ready; 0: never
		restart    bool
		want       string
	}{
		"StatefulSet":        {"StatefulSet", "db-0", 51, 70, 1, false, "creation delivered, deletion delivered, creation delivered, upgrade delivered"},
		"DaemonSet":          {"DaemonSet", "db-xyz", 51, 70, 1, false, "creation delivered, deletion delivered, creation delivered, upgrade delivered"},
		"late":               {"StatefulSet", "db-0", 51, 111, 1, false, "creation delivered, deletion delivered, upgrade missed SandboxFailed, creation delivered"},
		"other name":         {"StatefulSet", "db-1", 51, 70, 1, false, "creation delivered, deletion delivered, creation delivered"},
		"it was never ready": {"StatefulSet", "db-0", 51, 70, 0, false, "creation excluded, deletion delivered, creation delivered"},
		"it existed before":  {"DaemonSet", "db-xyz", 5, 70, 1, false, "creation delivered, deletion delivered, creation delivered"},
		"across a restart":   {"StatefulSet", "db-0", 51, 70, 1, true, "creation delivered, upgrade delivered"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{})
			state := bound
			if tt.lastOld > 0 {
				state = readyAt(tt.lastOld)
			}
			old := func(more ...func(*corev1.Pod)) *corev1.Pod {
				return newPod("db-0", append([]func(*corev1.Pod){of(tt.kind, "old", 0), state}, more...)...)
			}
			w.shows(old(), 1)
			w.shows(old(terminating(45, 10)), 10.5)
			w.Event(&corev1.Event{Reason: "Killing", InvolvedObject: corev1.ObjectReference{UID: "old"}}, false, second(11))
			ended := old(terminating(45, 10))
			ended.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: second(stopped)}}}}}
			w.shows(ended, stopped)
			w.until(50)
			w.Pod(ended, Gone, second(50.5))
			w.until(51)
			if tt.restart {
				w = w.restarted()
			}
			w.shows(newPod(tt.name, of(tt.kind, "new", tt.created)), 51.5)
			w.shows(newPod(tt.name, of(tt.kind, "new", tt.created), bound), 53)
			w.shows(newPod(tt.name, of(tt.kind, "new", tt.created), readyAt(tt.ready)), tt.ready)
			w.until(800)
			if w.outcomes() != tt.want {
				t.Errorf("%q, want %q", w.outcomes(), tt.want)
			}
			if n := w.Counts().Open; n != 0 || len(w.leave) != 0 {
				t.Errorf("%d acts are open, %d wait for a successor", n, len(w.leave))
			}
		})
	}
}

// restarted returns the follower of the next run.
func (w *world) restarted() *world {
	c := Config{Promised: w.config.Promised, Since: start}
	for _, a := range w.Follower.open {
		c.Open = append(c.Open, clone(a))
	}
	next := &world{Follower: New(c), now: w.now, open: w.open}
	next.Lease("kube-scheduler", false, second(w.now))
	next.Synced(second(w.now), true)
	return next
}

// An Event that arrives before its pod is kept for it.
func TestEventBeforeItsPod(t *testing.T) {
	w := newWorld(Config{})
	p := newPod("a", bound)
	w.until(1)
	for range maxEarly + 5 {
		w.Event(&corev1.Event{Type: "Warning", Reason: "FailedMount", InvolvedObject: corev1.ObjectReference{UID: "other"}}, false, second(1))
	}
	w.Event(&corev1.Event{Type: "Warning", Reason: "FailedCreatePodSandBox", Message: "Failed to create pod sandbox: no runtime for \"kata\" is configured",
		InvolvedObject: corev1.ObjectReference{UID: p.UID}}, false, second(1))
	w.shows(p, 1.1)
	w.until(100)
	if w.outcomes() != "creation missed RuntimeClassMissing" || len(w.early) >= maxEarly {
		t.Errorf("%s, %d Events are kept", w.outcomes(), len(w.early))
	}
}
