package answerkey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	promised  = 20 * time.Second
	namespace = "play"
	annotate  = "play.example/"
)

// object is JSON under construction.
type object = map[string]any

// play is a pod with its statuses, Events and expected answer.
type play struct {
	name     string
	pod      func(*corev1.Pod)
	steps    []step
	stop     []step // after the request of the deletion
	events   []said
	schedule string // the message of a condition; empty: bound at its creation
	from     string // reason of that condition
	bindIn   time.Duration
	then     func(*theater, *corev1.Pod) // plays the rest
	reason   string                      // of the last judged miss; empty: it is not compared
	class    string
	ahead    time.Duration // how far the node's clock is ahead
	verdicts string        // "creation missed" and so on, in alphabetical order; empty: the referee alone decides
}

// step is a status, and how long after the step before it is written.
type step struct {
	after  time.Duration
	status object
}

// said is an Event.
type said struct{ kind, reason, text, container string }

func condition(kind, status, reason, message string) object {
	return object{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "@now"}
}

// status returns a status with true conditions.
func status(phase string, more object, conditions ...string) object {
	list := []any{}
	for _, c := range append([]string{"PodScheduled"}, conditions...) {
		list = append(list, condition(c, "True", "", ""))
	}
	s := object{"phase": phase, "startTime": "@now", "conditions": list}
	for k, v := range more {
		s[k] = v
	}
	return s
}

func container(ready bool, state object) object {
	return object{"containerStatuses": []any{object{"name": "c", "image": "app:7", "imageID": "", "ready": ready, "restartCount": 0, "state": state,
		"resources": object{}}}}
}

func running() object { return object{"running": object{"startedAt": "@now"}} }

func terminated(code int, reason string) object {
	return object{"terminated": object{"exitCode": code, "reason": reason, "startedAt": "@now", "finishedAt": "@now"}}
}

// isRunning and isReady are the usual statuses; hasStarted is the first of a kubelet.
func isRunning() object {
	return status("Running", container(false, running()), "PodReadyToStartContainers", "Initialized")
}

func isReady() object {
	return status("Running", container(true, running()), "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
}

func hasStarted() object { return status("Pending", nil) }

func isWaiting(reason, text string) object {
	return status("Pending", container(false, object{"waiting": object{"reason": reason, "message": text}}), "PodReadyToStartContainers", "Initialized")
}

func hasEnded() object { return status("Running", container(false, terminated(0, "Completed"))) }

// annotations returns the play for kwok.
func (p *play) annotations() map[string]string {
	all, shown := map[string]string{}, time.Now().UTC()
	put := func(name, marker string, s step) {
		list, _ := s.status["conditions"].([]any)
		whole := maps.Clone(s.status)
		whole["conditions"] = append(slices.Clone(list), condition(annotate+"step", "True", marker, ""))
		text, err := json.Marshal(whole)
		if err != nil {
			panic(err) // the test's own maps
		}
		if shown = shown.Add(s.after); p.ahead != 0 {
			text = bytes.ReplaceAll(text, []byte("@now"), []byte(shown.Add(p.ahead).Format(time.RFC3339)))
		}
		all[annotate+name], all[annotate+name+"-after"] = string(text), s.after.String()
	}
	for i, s := range p.steps {
		put(fmt.Sprint(i+1), fmt.Sprintf("Step%d", i+1), s)
	}
	for _, s := range p.stop {
		put("stop", "Stop", s)
	}
	return all
}

func (p *play) object() *corev1.Pod {
	grace := int64(0)
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: namespace, Annotations: p.annotations()},
		Spec: corev1.PodSpec{SchedulerName: "none", TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: "app:7"}}}}
	if p.schedule == "" {
		if o.Spec.NodeName = "node-a"; p.ahead != 0 {
			o.Spec.NodeName = "node-ahead"
		}
	}
	if p.pod != nil {
		p.pod(o)
	}
	return o
}

// plays returns the plays of the answer key: each text once as a miss and once as an overcome error, before the
// pod was late for another reason.
func plays() (all []*play) {
	for i, a := range answers() {
		for j, text := range a.texts {
			name := fmt.Sprintf("k%02d-%s-%d", i, strings.ToLower(a.reason), j)
			miss := &play{name: name, reason: a.reason, class: a.class, verdicts: "creation missed"}
			over := &play{name: name + "-over", reason: "ReadinessSlow", class: user, verdicts: "creation missed"}
			switch a.how {
			case waiting:
				miss.steps = []step{{0, isWaiting(a.from, text)}}
				over.steps = []step{{0, isWaiting(a.from, text)}, {soon, isRunning()}}
				if a.reason == "CrashLoopBackOff" || a.reason == "PostStartFailed" { // a container that runs may end again
					over.steps[1].status = isReady()
					over.verdicts, over.reason = "creation delivered", ""
				}
			case event:
				miss.steps = []step{{0, hasStarted()}}
				over.steps = []step{{0, hasStarted()}, {soon, isRunning()}}
				miss.events = []said{{"Warning", a.from, text, ""}}
				over.events = miss.events
			case failed:
				miss.steps = []step{{0, status("Failed", object{"reason": a.from, "message": text})}}
				over = nil // it is final
			case unscheduled:
				miss.schedule, miss.from = text, a.from
				over.schedule, over.from, over.bindIn, over.steps = text, a.from, soon, []step{{0, isRunning()}}
			}
			if all = append(all, miss); over != nil {
				all = append(all, over)
			}
		}
	}
	return slices.Concat(all, stages(), edges(), deletions(), systemActs(), ahead())
}

// ahead are plays on a node whose clock is five minutes ahead: they have the same answers.
func ahead() (all []*play) {
	for _, p := range slices.Concat(stages(), edges()) {
		if p.then != nil || p.schedule != "" || len(p.steps) == 0 {
			continue
		}
		p.name, p.ahead = "a"+p.name, 5*time.Minute
		all = append(all, p)
	}
	return all
}
