package follow

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

func second(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

// world is a follower with a live watch until a second, and all its verdicts.
type world struct {
	*Follower
	now    float64
	judged []Act
	final  []Act
	open   map[string]Act
}

func newWorld(c Config) *world {
	if c.Promised == 0 {
		c.Promised = time.Minute
	}
	w := &world{Follower: New(c), open: map[string]Act{}}
	w.Lease("kube-scheduler", false, start)
	w.Synced(start, true)
	return w
}

// until lets time pass with a live watch; each second everything due is judged and stored.
func (w *world) until(s float64) {
	for w.now < s {
		w.now++
		w.Lease("kube-scheduler", false, second(w.now))
		w.turn()
	}
}

// silent lets time pass without signs of life.
func (w *world) silent(s float64) {
	for w.now < s {
		w.now++
		w.turn()
	}
}

func (w *world) turn() {
	b := w.Judge(second(w.now))
	slices.SortFunc(b.Judged, func(x, y Act) int { return strings.Compare(x.Key().String(), y.Key().String()) }) // a batch has no order
	w.judged, w.final = append(w.judged, b.Judged...), append(w.final, b.Refined...)
	for _, a := range b.Open {
		w.open[a.Key().String()] = a
	}
	for _, k := range b.Finished {
		delete(w.open, k.String())
	}
	w.Stored(b)
}

func (w *world) shows(p *corev1.Pod, s float64) {
	w.until(float64(int(s)))
	w.Pod(p, Watched, second(s))
}

func (w *world) outcomes() string {
	var all []string
	for _, a := range w.judged {
		text := string(a.Timeline.Act) + " " + string(a.Verdict.Outcome)
		if a.First.Reason != "" {
			text += " " + string(a.First.Reason)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

const secret = "hunter2"

func newPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), CreationTimestamp: metav1.Time{Time: start},
		Annotations: map[string]string{"note": secret}, Labels: map[string]string{"pod-template-hash": "abc"}, Generation: 1,
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-abc", Controller: new(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1", Args: []string{secret}, Command: []string{secret},
			Env:       []corev1.EnvVar{{Name: "PASSWORD", Value: secret}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func is(kind corev1.PodConditionType, s float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Time{Time: second(s).Truncate(time.Second)}})
	}
}

func bound(p *corev1.Pod) {
	p.Spec.NodeName = "n"
	is(corev1.PodScheduled, 1)(p)
	p.Status.StartTime = &metav1.Time{Time: second(2)}
}

func running(s float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		bound(p)
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: p.Spec.Containers[0].Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: second(s)}}}}}
		is(corev1.PodInitialized, s)(p)
	}
}

func readyAt(s float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		running(s)(p)
		is(corev1.ContainersReady, s)(p)
		is(corev1.PodReady, s)(p)
	}
}

func waiting(why, text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		bound(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: why, Message: text}}}}
	}
}

func terminating(grace int64, at float64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionGracePeriodSeconds = &grace
		p.DeletionTimestamp = &metav1.Time{Time: second(at + float64(grace))}
	}
}
