package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// stream answers a watch with events, one JSON object a line, and ends it.
func stream(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for _, e := range events {
			fmt.Fprintln(w, e)
		}
	}
}

func event(kind, version string, change ...func(*corev1.Pod)) string {
	p := pod("a", testNode)
	p.TypeMeta, p.ResourceVersion = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, version
	for _, c := range change {
		c(&p)
	}
	data, _ := json.Marshal(map[string]any{"type": kind, "object": p})
	return string(data)
}

// The watch begins at the version of the list and resumes at its last version; if it cannot resume, it begins again.
func TestFollowPods(t *testing.T) {
	const tooOld = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`
	list := object(t, podList("7", "", pod("a", testNode)))
	for name, c := range map[string]struct {
		from    string
		answers []http.HandlerFunc
		queries []string // resourceVersion of each request
		next    string
		changed bool
		fails   bool
	}{
		"ended by the apiserver": {"", []http.HandlerFunc{list, stream()}, []string{"0", "7"}, "7", false, false},
		"bookmark": {"", []http.HandlerFunc{list, stream(event("BOOKMARK", "9"))}, []string{"0", "7"}, "9", false,
			false},
		"goes on":  {"9", []http.HandlerFunc{stream()}, []string{"9"}, "9", false, false},
		"change":   {"9", []http.HandlerFunc{stream(event("MODIFIED", "12"))}, []string{"9"}, "12", true, false},
		"deletion": {"9", []http.HandlerFunc{stream(event("DELETED", "12"))}, []string{"9"}, "12", true, false},
		"too old, at once": {"9", []http.HandlerFunc{refusal(http.StatusGone, metav1.StatusReasonExpired)}, []string{"9"},
			"", false, true},
		"too old, later": {"9", []http.HandlerFunc{stream(tooOld)}, []string{"9"}, "", false, true},
		"not a pod":      {"9", []http.HandlerFunc{stream(`{"type":"ADDED","object":{"kind":"Foo"}}`)}, []string{"9"}, "", false, true},
		"no version":     {"9", []http.HandlerFunc{stream(event("MODIFIED", ""))}, []string{"9"}, "", false, true},
		"away": {"9", []http.HandlerFunc{refusal(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)},
			[]string{"9"}, "9", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, script(c.answers...))
			client := f.client()
			next, err := client.followPods(t.Context(), c.from)
			if next != c.next || (err != nil) != c.fails && !(name == "not a pod" && next == c.next) {
				t.Errorf("followPods() = %q, %v", next, err)
			}
			var queries []string
			for _, r := range f.seen() {
				q := r.URL.Query()
				queries = append(queries, q.Get("resourceVersion"))
				if q.Get("fieldSelector") != "spec.nodeName="+testNode || q.Get("timeoutSeconds") != "" {
					t.Errorf("request %s", r.URL)
				}
			}
			if diff := cmp.Diff(c.queries, queries); diff != "" {
				t.Error(diff)
			}
			if changed := !client.changes.event.IsZero(); changed != c.changed {
				t.Errorf("changed: %v", changed)
			}
		})
	}
}

// Without a running watch, no node counts as at rest.
func TestWatchPodsIsLiveOnlyWhileItRuns(t *testing.T) {
	held := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	f := newFakeServer(t, script(object(t, podList("7", "")), held))
	client := f.client()
	live := func() bool { return client.changes.unchangedSince(time.Now().Add(time.Hour)) }
	if live() {
		t.Error("live before it runs")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.WatchPods(ctx) }()
	for deadline := time.Now().Add(time.Minute); !live(); {
		if time.Now().After(deadline) {
			t.Fatal("never live")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil || live() {
		t.Errorf("WatchPods() = %v; live after it: %v", err, live())
	}
}

// Kubelet's counters are read each minute after a change, and for longer while a pod starts or ends.
func TestQuiet(t *testing.T) {
	pending := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		kind   watch.EventType
		after  time.Duration
	}{
		"changes":          {running, watch.Modified, activeAfterChange},
		"starts":           {pending, watch.Added, activeWhilePending},
		"ends":             {ending, watch.Modified, activeWhilePending},
		"is gone for good": {ending, watch.Deleted, activeAfterChange},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changes := &podChanges{}
				changes.begin(nil)
				changes.setLive(true)
				if !changes.quiet() {
					t.Error("not quiet before")
				}
				p := pod("a", testNode)
				c.change(&p)
				changes.observe(c.kind, &p)
				for at := time.Now(); time.Since(at) < c.after-time.Second; time.Sleep(time.Second) {
					changes.bookmark()
				}
				if changes.quiet() {
					t.Error("quiet too soon")
				}
				time.Sleep(2 * time.Second)
				if !changes.quiet() {
					t.Errorf("not quiet after %s", c.after)
				}
			})
		})
	}
}
