package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestKured(t *testing.T) {
	created := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	lock := func(node, more string) string {
		return fmt.Sprintf(`{"nodeID":%q,"created":%q%s}`, node, created, more)
	}
	for name, test := range map[string]struct {
		annotation string
		held       bool
		fails      bool
	}{
		"free":          {},
		"for this node": {annotation: lock(testNode, ""), held: true},
		"for another":   {annotation: lock("node-b", "")},
		"has ended":     {annotation: lock(testNode, `,"TTL":60000000000`)},
		"has not ended": {annotation: lock(testNode, `,"TTL":7200000000000`), held: true},
		"of several nodes": {annotation: `{"maxOwners":2,"locks":[` + lock("node-b", "") + "," + lock(testNode, "") + `]}`,
			held: true},
		"cannot be read":    {annotation: `{"nodeID":7}`, fails: true},
		"is locked by hand": {annotation: `{"nodeID":"manual"}`},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			if test.annotation != "" {
				annotations[kuredLock] = test.annotation
			}
			f := newFakeServer(t, object(t, &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
				ObjectMeta: metav1.ObjectMeta{Name: "kured", Annotations: annotations}}))
			why, err := f.client().Kured(within(t, time.Minute), "kube-system/kured")
			if (err != nil) != test.fails || (why != "") != test.held {
				t.Errorf("%q, %v", why, err)
			}
			for _, r := range f.seen() {
				if r.URL.Path != "/apis/apps/v1/namespaces/kube-system/daemonsets/kured" {
					t.Errorf("asked %s", r.URL)
				}
			}
		})
	}
}

func TestMedik8s(t *testing.T) {
	lease := func(holder string, renewed time.Duration) string {
		return fmt.Sprintf(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"node-node-a"},
"spec":{"holderIdentity":%q,"leaseDurationSeconds":3600,"renewTime":%q}}`, holder,
			time.Now().Add(-renewed).UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	for name, test := range map[string]struct{ lease, want string }{
		"held":                 {lease("node-maintenance", time.Minute), "node-maintenance"},
		"has ended":            {lease("node-maintenance", 2*time.Hour), ""},
		"given back":           {lease("", time.Minute), ""},
		"does not say when":    {`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","spec":{"holderIdentity":"x"}}`, "x"},
		"does not say of whom": {`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","spec":{}}`, "somebody"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, text(http.StatusOK, "application/json", test.lease))
			why, err := f.client().Medik8s(within(t, time.Minute), "medik8s-leases")
			if err != nil || !strings.HasPrefix(why, test.want) || (why == "") != (test.want == "") {
				t.Errorf("%q, %v", why, err)
			}
			for _, r := range f.seen() {
				if r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases/node-node-a" {
					t.Errorf("asked %s", r.URL)
				}
			}
		})
	}
}

// An object that does not exist holds no lock; a refusal is inconclusive.
func TestOwnersThatCannotBeAsked(t *testing.T) {
	f := newFakeServer(t, refusal(http.StatusNotFound, metav1.StatusReasonNotFound))
	c := f.client()
	for refused, answer := range map[bool]http.HandlerFunc{
		false: refusal(http.StatusNotFound, metav1.StatusReasonNotFound),
		true:  refusal(http.StatusForbidden, metav1.StatusReasonForbidden),
	} {
		f.set(answer)
		kured, err := c.Kured(within(t, time.Minute), "kube-system/kured")
		medik8s, err2 := c.Medik8s(within(t, time.Minute), "medik8s-leases")
		if kured+medik8s != "" || (err != nil) != refused || (err2 != nil) != refused {
			t.Errorf("refused %t: %q, %v; %q, %v", refused, kured, err, medik8s, err2)
		}
	}
}
