package answerkey

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each of these plays the rest of a pod after its creation.

// remove deletes the pod later.
func remove(after time.Duration) func(*theater, *corev1.Pod) {
	return func(s *theater, p *corev1.Pod) {
		s.sleep(after)
		s.delete(p)
	}
}

// whenReady deletes the pod when it is ready.
func whenReady(s *theater, p *corev1.Pod) {
	s.ready(p)
	s.delete(p)
}

// killing deletes the pod when it is ready, and reports as kubelet that its containers are being stopped.
func killing(s *theater, p *corev1.Pod) {
	whenReady(s, p)
	s.say(p, said{"Normal", "Killing", "Stopping container c", "c"})
}

// release removes the finalizer when the containers have ended.
func release(s *theater, p *corev1.Pod) {
	killing(s, p)
	s.ended(p)
	s.patch(p, "", merge, object{"metadata": object{"finalizers": nil}})
}

func killingWith(kind, text string) func(*theater, *corev1.Pod) {
	return func(s *theater, p *corev1.Pod) {
		killing(s, p)
		s.say(p, said{"Warning", kind, text, ""})
	}
}

// killingToEnd deletes the object, as kubelet does, when the containers have ended.
func killingToEnd(s *theater, p *corev1.Pod) {
	killing(s, p)
	s.ended(p)
	s.call(http.MethodDelete, podsPath+"/"+p.Name+"?gracePeriodSeconds=0", nil, nil)
}

// ended waits until the pod's container has ended.
func (s *theater) ended(p *corev1.Pod) {
	s.reaches(p, "ended", func(now *corev1.Pod) bool {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].State.Terminated != nil
	})
}

// again replaces the pod by another of its name.
func again(s *theater, p *corev1.Pod) {
	s.ready(p)
	s.delete(p)
	next := p.DeepCopy()
	next.ObjectMeta = metav1.ObjectMeta{Name: p.Name, Namespace: namespace, Annotations: p.Annotations}
	next.Status = corev1.PodStatus{}
	s.call(http.MethodPost, podsPath, next, nil)
}

// openGate removes the gates when the pod would be late with them, and places the pod.
func openGate(s *theater, p *corev1.Pod) {
	s.sleep(promised + 2*time.Second)
	s.patch(p, "", merge, object{"spec": object{"schedulingGates": nil}})
	s.bind(p)
}

// upgrade changes the image of the ready pod. The container restarts after some time, or waits for ever.
func upgrade(after time.Duration, failure string) func(*theater, *corev1.Pod) {
	return func(s *theater, p *corev1.Pod) {
		s.ready(p)
		s.patch(p, "", strategic, object{"spec": object{"containers": []any{object{"name": "c", "image": "app:8"}}}})
		next := object{"name": "c", "image": "app:8", "imageID": "", "ready": failure == "", "restartCount": 1, "state": running()}
		if failure != "" {
			next["state"] = object{"waiting": object{"reason": failure, "message": "failed to resolve image: app:8: not found"}}
		}
		s.sleep(after)
		s.patch(p, "status", strategic, object{"status": object{"observedGeneration": 2, "containerStatuses": []any{next},
			"conditions": []any{condition("Ready", map[bool]string{true: "True", false: "False"}[failure == ""], "", "")}}})
	}
}

// resize asks for more processor time, which kubelet refuses.
func resize(how string) func(*theater, *corev1.Pod) {
	return func(s *theater, p *corev1.Pod) {
		s.ready(p)
		s.patch(p, "resize", strategic, object{"spec": object{"containers": []any{
			object{"name": "c", "resources": object{"requests": object{"cpu": "2"}}}}}})
		pending := condition("PodResizePending", "True", how, "Node didn't have enough resource: cpu, requested: 2000, used: 7000, capacity: 8000")
		s.patch(p, "status", strategic, object{"status": object{"observedGeneration": 2, "conditions": []any{pending}}})
	}
}

func (s *theater) patch(p *corev1.Pod, sub, kind string, change object) {
	text, err := json.Marshal(change)
	s.check(err)
	now := time.Now().UTC()
	text = bytes.ReplaceAll(text, []byte("@now"), []byte(now.Format(time.RFC3339)))
	text = bytes.ReplaceAll(text, []byte("@before"), []byte(now.Add(-promised/2).Format(time.RFC3339)))
	s.check(s.do(http.MethodPatch, path.Join(podsPath, p.Name, sub), kind, text, nil))
}

func (s *theater) delete(p *corev1.Pod) { s.call(http.MethodDelete, podsPath+"/"+p.Name, nil, nil) }

func (s *theater) bind(p *corev1.Pod) {
	s.call(http.MethodPost, podsPath+"/"+p.Name+"/binding", &corev1.Binding{TypeMeta: metav1.TypeMeta{Kind: "Binding", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-a"}}, nil)
}

// say creates an Event as kubelet does.
func (s *theater) say(p *corev1.Pod, e said) {
	now := metav1.Now()
	about := corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: p.Name, UID: p.UID, APIVersion: "v1"}
	if e.container != "" {
		about.FieldPath = "spec.containers{" + e.container + "}"
	}
	s.call(http.MethodPost, "/api/v1/namespaces/"+namespace+"/events", &corev1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: p.Name + ".", Namespace: namespace},
		InvolvedObject: about, Reason: e.reason, Message: e.text, Type: e.kind, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "kubelet", Host: p.Spec.NodeName}}, nil)
}

// ready waits until the pod is ready.
func (s *theater) ready(p *corev1.Pod) {
	s.reaches(p, "ready", func(now *corev1.Pod) bool {
		return slices.ContainsFunc(now.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
}

func (s *theater) reaches(p *corev1.Pod, what string, holds func(*corev1.Pod) bool) {
	s.await(p.Name+" "+what, func() bool {
		var now corev1.Pod
		return s.do(http.MethodGet, podsPath+"/"+p.Name, plain, nil, &now) == nil && holds(&now)
	})
}

// removeFailed deletes the pod when it has failed.
func removeFailed(s *theater, p *corev1.Pod) {
	s.reaches(p, "failed", func(now *corev1.Pod) bool { return now.Status.Phase == corev1.PodFailed })
	s.delete(p)
}
