package answerkey

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

// podsOfSets is the number of pods, old and new, that rollouts wants.
const podsOfSets = 8

// rollouts upgrades pods by replacement: a StatefulSet, a DaemonSet, and a StatefulSet whose new pod is late.
func (s *theater) rollouts(parts *sync.WaitGroup) {
	for _, set := range []struct {
		kind, name string
		replicas   int
		late       time.Duration
	}{{"StatefulSet", "r-set", 2, 0}, {"DaemonSet", "r-daemon", 1, 0}, {"StatefulSet", "r-late", 1, promised + 5*time.Second}} {
		parts.Go(func() {
			path := "/apis/apps/v1/namespaces/" + namespace + "/" + strings.ToLower(set.kind) + "s"
			spec := object{"selector": object{"matchLabels": object{"set": set.name}}, "template": template(set.name, "app:7", 0)}
			if set.kind == "StatefulSet" {
				spec["replicas"], spec["serviceName"] = set.replicas, set.name
			}
			s.call(http.MethodPost, path, object{"kind": set.kind, "apiVersion": "apps/v1", "metadata": object{"name": set.name}, "spec": spec}, nil)
			s.settled(path+"/"+set.name, 1)
			text, err := json.Marshal(object{"spec": object{"template": template(set.name, "app:8", set.late)}})
			s.check(err)
			s.check(s.do(http.MethodPatch, path+"/"+set.name, merge, text, nil))
			s.settled(path+"/"+set.name, 2)
		})
	}
}

// template is one whose pods are ready after some time, and end three seconds after their deletion is requested: the
// StatefulSet controller then has its own last status, without which it creates a pod of the old revision once more.
func template(set, image string, readyAfter time.Duration) object {
	p := &play{steps: []step{{readyAfter, isReady()}}, stop: []step{{3 * time.Second, hasEnded()}}}
	annotations := p.annotations()
	annotations[annotate+"gone"] = "yes"
	return object{"metadata": object{"labels": object{"set": set}, "annotations": annotations},
		"spec": object{"terminationGracePeriodSeconds": 5, "nodeSelector": object{"play": "yes"},
			"tolerations": []any{object{"operator": "Exists"}}, "containers": []any{object{"name": "c", "image": image}}}}
}

// settled waits until all pods of a set are of a generation and ready.
func (s *theater) settled(path string, generation int64) {
	s.await(path, func() bool {
		var set struct {
			Spec   struct{ Replicas *int }
			Status struct {
				ObservedGeneration                                          int64
				ReadyReplicas, UpdatedReplicas                              int
				NumberReady, DesiredNumberScheduled, UpdatedNumberScheduled int
			}
		}
		if s.do(http.MethodGet, path, plain, nil, &set) != nil || set.Status.ObservedGeneration < generation {
			return false
		}
		t := &set.Status
		if set.Spec.Replicas != nil {
			return t.ReadyReplicas == *set.Spec.Replicas && t.UpdatedReplicas == *set.Spec.Replicas
		}
		return t.DesiredNumberScheduled == 1 && t.NumberReady == 1 && t.UpdatedNumberScheduled == 1
	})
}
