package answerkey

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
)

const (
	soon = 3 * time.Second
	edge = 300 * time.Millisecond // between the promised time and the sharp edges
)

// systemActs are pods that the real scheduler, the taint manager and the eviction API act on.
func systemActs() (all []*play) {
	requests := func(list corev1.ResourceList) func(*corev1.Pod) {
		return func(o *corev1.Pod) {
			o.Spec.SchedulerName, o.Spec.NodeName = "default-scheduler", ""
			o.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			o.Spec.Containers[0].Resources.Requests = list
		}
	}
	cpu, memory := corev1.ResourceCPU, corev1.ResourceMemory
	tainted := func(o *corev1.Pod) { o.Spec.NodeName = "node-taint" }
	const removed = "creation missed,deletion delivered"
	for _, p := range []play{
		{name: "t-impossible-cpu", pod: requests(corev1.ResourceList{cpu: resource.MustParse("100")}), reason: "ImpossibleRequest", class: user},
		{name: "t-impossible-memory", pod: requests(corev1.ResourceList{cpu: resource.MustParse("2"), memory: resource.MustParse("1Ti")}),
			reason: "ImpossibleRequest", class: user},
		{name: "t-impossible-over", pod: requests(corev1.ResourceList{cpu: resource.MustParse("500m"), memory: resource.MustParse("2Ti")}),
			steps: []step{{0, isRunning()}},
			then:  largerNode, reason: "ReadinessSlow", class: user},
		{name: "t-taint", pod: tainted, steps: []step{{0, hasStarted()}}, reason: "EvictedByTaint", class: system, verdicts: removed},
		{name: "t-evict", steps: []step{{0, hasStarted()}}, then: evict, reason: "EvictedByApi", class: system, verdicts: removed},
	} {
		if p.verdicts == "" {
			p.verdicts = "creation missed"
		}
		all = append(all, twice(p)...)
	}
	return all
}

// largerNode adds a node on which the pod fits. It has no room for the processor time that others ask for.
func largerNode(s *theater, p *corev1.Pod) {
	s.sleep(soon)
	n := object{"metadata": object{"name": "node-" + p.Name, "annotations": object{"kwok.x-k8s.io/node": "fake"}}, "status": object{
		"conditions":  []any{object{"type": "Ready", "status": "True", "lastTransitionTime": metav1.Unix(1, 0)}},
		"allocatable": object{"cpu": "1", "memory": "4Ti", "pods": "10"}, "capacity": object{"cpu": "1", "memory": "4Ti", "pods": "10"}}}
	s.call(http.MethodPost, "/api/v1/nodes", n, nil)
}

func evict(s *theater, p *corev1.Pod) {
	s.reaches(p, "seen by kubelet", func(now *corev1.Pod) bool { return now.Status.StartTime != nil })
	s.call(http.MethodPost, podsPath+"/"+p.Name+"/eviction", object{"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata": object{"name": p.Name}}, nil)
}

// taint gives node-taint a taint that its pods do not tolerate, when they have been seen.
func (s *theater) taint() {
	for i := range 2 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t-taint-%d", i)}}
		s.reaches(p, "seen by kubelet", func(now *corev1.Pod) bool { return now.Status.StartTime != nil })
	}
	s.check(s.do(http.MethodPatch, "/api/v1/nodes/node-taint", merge,
		[]byte(`{"spec":{"taints":[{"key":"example.com/drain","effect":"NoExecute"}]}}`), nil))
}

// at writes a status when a time has passed since the creation.
func at(when time.Duration, status object) func(*theater, *corev1.Pod) {
	return func(s *theater, p *corev1.Pod) {
		s.sleep(time.Until(s.made(p).Add(when)))
		s.patch(p, "status", strategic, object{"status": status})
	}
}

// before turns the times of a status back.
func before(status object) object {
	for _, c := range status["conditions"].([]any) {
		c.(object)["lastTransitionTime"] = "@before"
	}
	return status
}

// sharp are pods that are ready shortly before or after the deadline, by the referee's clock; and the reasons of those that
// are late by so little that all their stages have ended when the miss is judged.
func sharp() (all []*play) {
	late := promised + edge
	two := func(o *corev1.Pod) {
		o.Spec.Containers = append(o.Spec.Containers, corev1.Container{Name: "d", Image: "other:7"})
	}
	behind := isRunning()
	behind["containerStatuses"] = append(behind["containerStatuses"].([]any), object{"name": "d", "image": "other:7", "imageID": "",
		"ready": false, "restartCount": 0,
		"state": object{"waiting": object{"reason": "ContainerCreating"}}})
	pulling := func(c, image string) said {
		return said{"Normal", "Pulling", fmt.Sprintf("Pulling image %q", image), c}
	}
	for _, p := range []play{
		{name: "x-intime", then: at(promised-edge, isReady())},
		{name: "x-late", then: at(late, isReady()), reason: "StageSlow", class: system},
		{name: "x-readiness", steps: []step{{0, isRunning()}}, then: at(late, isReady()), reason: "StageSlow", class: user},
		{name: "x-reported", steps: []step{{0, hasStarted()}}, then: at(late, before(isReady())), reason: "ControlPlaneSlow", class: system},
		{name: "x-queued", pod: two, steps: []step{{0, behind}}, events: []said{pulling("c", "app:7"), pulling("d", "other:7"),
			{"Normal", "Pulled", `Successfully pulled image "app:7" in 1.5s (7.5s including waiting). Image size: 1234 bytes.`, "c"}},
			reason: "ImagePullQueued", class: system},
	} {
		all = append(all, twice(p)...)
	}
	return all
}

// withoutScheduler kills the scheduler, and plays pods that no scheduler places; and the sharp edges, because now the
// machine is quiet.
func (s *theater) withoutScheduler(parts *sync.WaitGroup) []*play {
	_ = s.scheduler.Process.Kill()
	all := slices.Concat(schedulerDown(), sharp())
	begin := make(places, len(all))
	for _, p := range all {
		begin.take()
		parts.Go(func() { s.perform(p, begin) })
	}
	return all
}

func schedulerDown() []*play {
	unplaced := func(o *corev1.Pod) { o.Spec.SchedulerName = "default-scheduler" }
	return slices.Concat(
		twice(play{name: "z-down", pod: unplaced, schedule: "-", reason: "SchedulerDown", class: system, verdicts: "creation missed"}),
		twice(play{name: "z-down-over", pod: unplaced, schedule: "-", bindIn: soon, steps: []step{{0, isRunning()}}, reason: "ReadinessSlow",
			class:    user,
			verdicts: "creation missed"}))
}

// The answer key has each reason at least twice, except those that no miss of a real cluster has.
func TestEachReasonIsPlayed(t *testing.T) {
	played := map[reason.Reason]int{}
	for _, p := range slices.Concat(plays(), schedulerDown(), sharp()) {
		played[reason.Reason(p.reason)]++
	}
	for _, r := range refusals() {
		played[reason.Reason(r.reason)] += 2 // two kinds of owners
	}
	for _, info := range reason.Reasons() {
		switch n := played[info.Reason]; {
		case info.Reason == "SchedulingGated" || info.Reason == reason.Unknown: // gated time is the user's, and never missed
		case info.Reason == "UnmountStuck" || info.Reason == "CgroupStuck": // only the evidence of an agent shows them: pkg/trace/follow
		case n < 2:
			t.Errorf("%s is played %d times", info.Reason, n)
		}
	}
}
