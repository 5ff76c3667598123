package answerkey

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/test/loopback"
)

// refused is a cause for which the apiserver refuses the pods of two owners. The real controllers report most of them.
type refused struct {
	name, reason, class string
	labels              object // of the namespace
	path                string // of the object that is the cause
	cause               func(s *theater, namespace string) object
	gone                bool   // the object's absence is the cause, not its presence
	binding             string // of a policy, likewise
	pod                 object // in the owners' templates
	told                string // the text of the owners' Events: no controller is involved
}

const (
	webhooksPath = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	policiesPath = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	bindingsPath = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
)

func refusals() []refused {
	webhook := func(address func(*theater) string) func(*theater, string) object {
		return func(s *theater, namespace string) object {
			return object{"metadata": object{"name": namespace}, "webhooks": []any{object{"name": "a.example.com", "sideEffects": "None",
				"timeoutSeconds":          1,
				"admissionReviewVersions": []string{"v1"}, "clientConfig": object{"url": "https://" + address(s) + "/"},
				"namespaceSelector": object{"matchLabels": object{"kubernetes.io/metadata.name": namespace}},
				"rules": []any{object{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"CREATE"},
					"resources": []string{"pods"}}}}}}
		}
	}
	return []refused{
		{name: "quota", reason: "QuotaExceeded", class: user, path: "/api/v1/namespaces/@/resourcequotas", cause: func(*theater, string) object {
			return object{"metadata": object{"name": "@"}, "spec": object{"hard": object{"pods": "0"}}}
		}},
		{name: "security", reason: "AdmissionDenied", class: user, labels: object{"pod-security.kubernetes.io/enforce": "restricted"}},
		{name: "policy", reason: "AdmissionDenied", class: user, path: policiesPath, binding: bindingsPath,
			cause: func(_ *theater, namespace string) object {
				return object{"metadata": object{"name": namespace}, "spec": object{"validations": []any{object{"expression": "false"}},
					"matchConstraints": object{"namespaceSelector": object{"matchLabels": object{"kubernetes.io/metadata.name": namespace}},
						"resourceRules": []any{object{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"CREATE"},
							"resources": []string{"pods"}}}}}}
			}},
		{name: "webhook-down", reason: "AdmissionUnavailable", class: system, path: webhooksPath,
			cause: webhook(func(s *theater) string { return loopback.Free(s.t) })},
		{name: "webhook-hangs", reason: "AdmissionUnavailable", class: system, path: webhooksPath, cause: webhook((*theater).silence)},
		{name: "priority", reason: "InvalidSpec", class: user, path: "/apis/scheduling.k8s.io/v1/priorityclasses", gone: true,
			pod: object{"priorityClassName": "@"},
			cause: func(_ *theater, namespace string) object {
				return object{"metadata": object{"name": namespace}, "value": 7}
			}},
		{name: "etcd", reason: "CreateFailed", class: system, told: "Error creating: etcdserver: request timed out"},
		{name: "unknown", reason: "CreateFailed", class: system,
			told: `Error creating: pods "web-x1" is forbidden: status unknown for quota: q, resources: pods`},
	}
}

// silence returns the address of a server that takes connections, and never answers.
func (s *theater) silence() string {
	listener, err := net.Listen("tcp", loopback.Free(s.t))
	if err != nil {
		s.t.Error(err)
		return ""
	}
	s.t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// refuse plays each cause twice with each owner, in a namespace each. In one it stays; in the other it is overcome in time.
func (s *theater) refuse(parts *sync.WaitGroup) (all []*play) {
	for _, r := range refusals() {
		for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
			in := namespace + "-" + r.name + "-" + strings.ToLower(kind)
			all = append(all, &play{name: in + "/web", reason: r.reason, class: r.class, verdicts: "refusal missed"},
				&play{name: in + "-over/web", verdicts: "refusal delivered"})
			parts.Go(func() { s.refuseIn(r, kind, in) })
			parts.Go(func() {
				s.refuseIn(r, kind, in+"-over")
				s.overcome(r, kind, in+"-over")
			})
		}
	}
	return all
}

// refuseIn has an owner's pod refused, and returns when a few Events tell of it.
func (s *theater) refuseIn(r refused, kind, in string) {
	s.call(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": in, "labels": r.labels}}, nil)
	if r.path != "" && !r.gone {
		s.call(http.MethodPost, strings.ReplaceAll(r.path, "@", in), s.named(r.cause(s, in), in), nil)
	}
	if r.binding != "" {
		s.call(http.MethodPost, r.binding, object{"metadata": object{"name": in}, "spec": object{"policyName": in,
			"validationActions": []string{"Deny"}}}, nil)
	}
	try := object{"metadata": object{"name": "try"}, "spec": s.named(template("try", "app:7", 0)["spec"].(object), in)}
	for k, v := range r.pod {
		try["spec"].(object)[k] = v
	}
	body, err := json.Marshal(s.named(try, in))
	s.check(err)
	s.await(in+" refuses pods", func() bool {
		return r.told != "" || s.do(http.MethodPost, "/api/v1/namespaces/"+in+"/pods?dryRun=All", plain, body, nil) != nil
	})
	s.owner(r, kind, in)
	s.await(in+" has an Event of a refusal", func() bool { // a busy controller comes late
		var events corev1.EventList
		s.check(s.do(http.MethodGet, "/api/v1/namespaces/"+in+"/events?fieldSelector=reason%3DFailedCreate", plain, nil, &events))
		return len(events.Items) > 0
	})
	s.sleep(3 * time.Second)
	if r.told != "" {
		s.tell(r, kind, in)
	}
}

// overcome ends the cause, and has the owner's controller try again: it may wait longer than promised before it does.
func (s *theater) overcome(r refused, kind, in string) {
	path := strings.ReplaceAll(r.path, "@", in)
	switch {
	case r.told != "":
	case r.labels != nil:
		s.check(s.do(http.MethodPatch, "/api/v1/namespaces/"+in, merge,
			[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`), nil))
	case r.gone:
		s.call(http.MethodPost, path, r.cause(s, in), nil)
	default:
		s.call(http.MethodDelete, path+"/"+in, nil, nil)
	}
	tries := 0
	s.await(in+" has a pod", func() bool {
		tries++
		change := fmt.Appendf(nil, `{"metadata":{"annotations":{"try":"%d"}},"spec":{"replicas":1}}`, tries)
		s.check(s.do(http.MethodPatch, ownerPath(kind, in)+"/web", merge, change, nil))
		s.sleep(time.Second)
		var pods corev1.PodList
		s.check(s.do(http.MethodGet, "/api/v1/namespaces/"+in+"/pods", plain, nil, &pods))
		return len(pods.Items) > 0
	})
}

// named puts the namespace's name into an object.
func (s *theater) named(o object, in string) object {
	text, err := json.Marshal(o)
	s.check(err)
	var named object
	s.check(json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"@"`, `"`+in+`"`)), &named))
	return named
}

func ownerPath(kind, in string) string {
	return "/apis/apps/v1/namespaces/" + in + "/" + strings.ToLower(kind) + "s"
}

// owner creates an owner with one pod; without any, if Events alone tell that it is refused.
func (s *theater) owner(r refused, kind, in string) {
	t := template("web", "app:7", 0)
	for k, v := range r.pod {
		t["spec"].(object)[k] = v
	}
	spec := object{"replicas": 1, "selector": object{"matchLabels": object{"set": "web"}}, "template": t}
	if kind == "StatefulSet" {
		spec["serviceName"] = "web"
	}
	if r.told != "" {
		spec["replicas"] = 0
	}
	var made metav1.PartialObjectMetadata
	s.call(http.MethodPost, ownerPath(kind, in), s.named(object{"kind": kind, "apiVersion": "apps/v1", "metadata": object{"name": "web"},
		"spec": spec}, in), &made)
	s.mu.Lock()
	s.owners[in+"/web"] = string(made.UID)
	s.mu.Unlock()
	if r.told != "" {
		s.tell(r, kind, in)
	}
}

// tell creates the Event of a refusal, as a controller does.
func (s *theater) tell(r refused, kind, in string) {
	now := metav1.Now()
	s.mu.Lock()
	uid := s.owners[in+"/web"]
	s.mu.Unlock()
	s.call(http.MethodPost, "/api/v1/namespaces/"+in+"/events", object{"metadata": object{"generateName": "web", "namespace": in},
		"reason": "FailedCreate", "type": "Warning",
		"message": r.told, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
		"involvedObject": corev1.ObjectReference{Kind: kind, Namespace: in, Name: "web", APIVersion: "apps/v1", UID: types.UID(uid)},
		"source":         object{"component": strings.ToLower(kind) + "-controller"}}, nil)
}
