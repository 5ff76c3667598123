package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/need"
)

// The example policy makes the pods of an owner prefer other nodes than those listed for it, beside the preferences that they have, and
// leaves all other pods alone: it fails open.
func TestRealAPIServerAvoidPolicy(t *testing.T) {
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	c := &cluster{Server: apiserver.Start(t, "../.."), t: t}
	text, err := os.ReadFile("../../packaging/kubernetes/avoid-owner.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(text), "\n---\n") {
		object, err := yaml.YAMLToJSON([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		c.Create("/apis/admissionregistration.k8s.io/v1/"+[]string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}[i], string(object), nil)
	}
	c.Create("/api/v1/namespaces", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"without"}}`, nil)
	c.Create("/api/v1/namespaces/default/configmaps", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"avoid-nodes"},"data":{"uid-1":"n1,n2","uid-2":""}}`, nil)
	made := 0
	terms := func(namespace, owner, affinity string) string {
		made++
		var pod corev1.Pod
		code, answer, err := c.Do(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1",
 "metadata":{"name":"p%d","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":%q,"controller":true}]},
 "spec":{"containers":[{"name":"c","image":"a:1"}]%s}}`, made, owner, affinity))
		if err != nil || code != http.StatusCreated || json.Unmarshal(answer, &pod) != nil {
			t.Fatalf("%v %d %s", err, code, answer)
		}
		var all []string
		if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			for _, term := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
				for _, f := range append(term.Preference.MatchFields, term.Preference.MatchExpressions...) {
					all = append(all, fmt.Sprint(term.Weight, " ", f.Key, " ", f.Operator, " ", f.Values))
				}
			}
		}
		return strings.Join(all, ", ")
	}
	const listed = "100 metadata.name NotIn [n1], 100 metadata.name NotIn [n2]"
	c.await("the policy in force", func() bool { return terms("default", "uid-1", "") == listed })
	const own = `,"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"z","operator":"Exists"}]}}]}}`
	if got := terms("default", "uid-1", own); got != "1 z Exists [], "+listed {
		t.Errorf("with a preference of its own: %q", got)
	}
	if got := terms("default", "uid-1", `,"affinity":{"podAntiAffinity":{}}`); got != listed {
		t.Errorf("with another affinity: %q", got)
	}
	for _, pod := range [][2]string{{"default", "uid-2"}, {"default", "uid-3"}, {"without", "uid-1"}} {
		if got := terms(pod[0], pod[1], ""); got != "" {
			t.Errorf("%s: %q", pod, got)
		}
	}
}
