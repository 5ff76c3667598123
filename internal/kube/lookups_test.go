package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Exists does not request a Secret's data, and only "not found" means that it does not exist.
func TestExists(t *testing.T) {
	f := newFakeServer(t, text(http.StatusOK, "application/json", `{}`))
	c := f.client()
	exists, err := c.Exists(within(t, time.Minute), "secret", "shop", "key")
	if err != nil || !exists {
		t.Errorf("%v, %v", exists, err)
	}
	for _, r := range f.seen() {
		if r.URL.Path != "/api/v1/namespaces/shop/secrets/key" || !strings.Contains(r.Header.Get("Accept"),
			"as=PartialObjectMetadata") {
			t.Errorf("asked %s, accepting %s", r.URL, r.Header.Get("Accept"))
		}
	}
	f.set(refusal(http.StatusNotFound, metav1.StatusReasonNotFound))
	if exists, err := c.Exists(within(t, time.Minute), "secret", "shop", "key"); err != nil || exists {
		t.Errorf("not found: %v, %v", exists, err)
	}
	f.set(refusal(http.StatusForbidden, metav1.StatusReasonForbidden))
	if _, err := c.Exists(within(t, time.Minute), "secret", "shop", "key"); err == nil {
		t.Error("a refusal says nothing about whether it exists")
	}
	f.seen()
	for _, bad := range [][3]string{{"pod", "shop", "key"}, {"secret", "shop", "../key"}, {"secret", "a/b", "key"}} {
		if _, err := c.Exists(within(t, time.Minute), bad[0], bad[1], bad[2]); err == nil || len(f.seen()) > 0 {
			t.Errorf("%v was asked for: %v", bad, err)
		}
	}
}

// The events are those of one pod, by its UID; an answer other than a list is not "none".
func TestPodEvents(t *testing.T) {
	events := &corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Event{{Reason: "FailedMount"}}}
	f := newFakeServer(t, object(t, events))
	c, p := f.client(), pod("a", testNode)
	found, err := c.PodEvents(within(t, time.Minute), &p)
	if err != nil || len(found) != 1 {
		t.Errorf("%d events, %v", len(found), err)
	}
	for _, r := range f.seen() {
		if got := r.URL.Query().Get("fieldSelector"); got != "involvedObject.uid="+string(p.UID) {
			t.Errorf("asked for %q", got)
		}
	}
	f.set(text(http.StatusOK, "application/json", `{}`))
	if _, err := c.PodEvents(within(t, time.Minute), &p); err == nil {
		t.Error("{} was taken for a list")
	}
	if _, err := c.PodEvents(within(t, time.Minute), &corev1.Pod{}); err == nil {
		t.Error("events of no pod were asked for")
	}
}
