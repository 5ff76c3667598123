package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func names(pods []corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

func TestPods(t *testing.T) {
	jsonType := "application/json"
	first := podList("7", "page-2", pod("a", testNode), pod("b", testNode))
	second := podList("7", "", pod("c", testNode))
	expired := refusal(http.StatusGone, metav1.StatusReasonExpired)
	noUID := pod("a", testNode)
	noUID.UID = ""
	tests := map[string]struct {
		answers  []http.HandlerFunc
		want     []string
		err      string // part of the error
		requests int
	}{
		"one page": {[]http.HandlerFunc{object(t, second)}, []string{"c"}, "", 1},
		"two pages": {[]http.HandlerFunc{object(t, first), object(t, second)}, []string{"a", "b", "c"}, "",
			2},
		"no pods": {[]http.HandlerFunc{object(t, podList("7", ""))}, nil, "", 1},
		"JSON": {[]http.HandlerFunc{text(200, jsonType,
			`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)}, nil, "", 1},
		"expired once": {[]http.HandlerFunc{object(t, first), expired, object(t, first), object(t, second)},
			[]string{"a", "b", "c"}, "", 4},
		"expired twice": {[]http.HandlerFunc{object(t, first), expired, object(t, first), expired}, nil,
			"refused", 4},
		"other node": {[]http.HandlerFunc{object(t, podList("7", "", pod("a", "node-b")))}, nil,
			`pod default/a of node "node-b"`, 1},
		"no node":             {[]http.HandlerFunc{object(t, podList("7", "", pod("a", "")))}, nil, `of node ""`, 1},
		"no UID":              {[]http.HandlerFunc{object(t, podList("7", "", noUID))}, nil, "without a UID", 1},
		"same page for ever":  {[]http.HandlerFunc{object(t, first)}, nil, "do not advance", 2},
		"empty page, goes on": {[]http.HandlerFunc{object(t, podList("7", "x"))}, nil, "do not advance", 1},
		"no resourceVersion":  {[]http.HandlerFunc{object(t, podList("", ""))}, nil, "no list", 1},
		"{}":                  {[]http.HandlerFunc{text(200, jsonType, "{}")}, nil, "no list", 1},
		"another kind": {[]http.HandlerFunc{text(200, jsonType,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1"}}`)}, nil, "no list", 1},
		"kind of nobody": {[]http.HandlerFunc{text(200, jsonType, `{"kind":"Foo","apiVersion":"v1"}`)}, nil,
			"no kind", 1},
		"status with 200": {[]http.HandlerFunc{text(200, jsonType,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)}, nil,
			"list pods", 1},
		"web page":   {[]http.HandlerFunc{text(200, "text/html", "<html>Log in</html>")}, nil, "list pods", 1},
		"empty body": {[]http.HandlerFunc{text(200, jsonType, "")}, nil, "0-length", 1},
		"protobuf, truncated": {[]http.HandlerFunc{text(200, "application/vnd.kubernetes.protobuf",
			string(encode(t, first)[:40]))}, nil, "list pods", 1},
		"protobuf, empty": {[]http.HandlerFunc{text(200, "application/vnd.kubernetes.protobuf", "k8s\x00")}, nil,
			"list pods", 1},
		"500":              {[]http.HandlerFunc{refusal(500, metav1.StatusReasonInternalError)}, nil, "refused", 1},
		"503 without body": {[]http.HandlerFunc{text(503, "text/plain", "")}, nil, "list pods", 1},
		"redirect": {[]http.HandlerFunc{text(302, "text/plain", "", "Location", "http://127.0.0.1:1/")}, nil,
			"list pods", 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(t, script(test.answers...))
			got, err := server.client().Cluster().Pods(within(t, time.Minute))
			if (err != nil) != (test.err != "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("Pods() = %v, %v; want error with %q", names(got), err, test.err)
			}
			if err != nil && got != nil {
				t.Errorf("pods beside error %v", err)
			}
			if diff := cmp.Diff(test.want, names(got)); diff != "" {
				t.Error(diff)
			}
			if n := len(server.seen()); n != test.requests {
				t.Errorf("%d requests, want %d", n, test.requests)
			}
			for _, pod := range got {
				if pod.ManagedFields != nil || string(pod.UID) != "uid-of-"+pod.Name {
					t.Errorf("%s: managedFields %v, UID %s", pod.Name, pod.ManagedFields, pod.UID)
				}
			}
		})
	}
}

func TestPodsRequest(t *testing.T) {
	server := newFakeServer(t, script(object(t, podList("7", "page 2", pod("a", testNode))),
		object(t, podList("7", ""))))
	if _, err := server.client().Cluster().Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range server.seen() {
		got = append(got, r.Method+" "+r.Proto+" "+r.URL.Path+" "+r.URL.Query().Encode())
		if agent := r.UserAgent(); !strings.HasPrefix(agent, "nodeagent/1.2.3 (linux/") {
			t.Errorf("User-Agent %q", agent)
		}
		if auth := r.Header.Get("Authorization"); auth != "Bearer secret-1" {
			t.Errorf("Authorization %q", auth)
		}
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf,") {
			t.Errorf("Accept %q", accept)
		}
	}
	want := []string{
		"GET HTTP/2.0 /api/v1/pods fieldSelector=spec.nodeName%3Dnode-a&limit=500",
		"GET HTTP/2.0 /api/v1/pods continue=page+2&fieldSelector=spec.nodeName%3Dnode-a&limit=500",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The request for the one pod of a name is for its namespace, on this node, as of now. An invalid name is not
// requested.
func TestPodsNamed(t *testing.T) {
	elsewhere := pod("web-0", testNode)
	elsewhere.Namespace = "other"
	tests := map[string]struct {
		answer          http.HandlerFunc
		namespace, name string
		want            []string // UIDs
		err             string
	}{
		"there": {object(t, podList("7", "", pod("web-0", testNode))), "default", "web-0",
			[]string{"uid-of-web-0"}, ""},
		"not there": {object(t, podList("7", "")), "default", "web-0", nil, ""},
		"forbidden": {refusal(403, metav1.StatusReasonForbidden), "default", "web-0", nil, "refused"},
		"no list":   {object(t, podList("", "")), "default", "web-0", nil, "no list"},
		"another pod": {object(t, podList("7", "", pod("web-1", testNode))), "default", "web-0", nil,
			"answered with pod default/web-1"},
		"elsewhere": {object(t, podList("7", "", elsewhere)), "default", "web-0", nil,
			"answered with pod other/web-0"},
		"another node": {object(t, podList("7", "", pod("web-0", "node-b"))), "default", "web-0", nil,
			`of node "node-b"`},
		"a selector":       {nil, "default", "web-0,spec.nodeName!=node-a", nil, "web-0,spec.nodeName!=node-a"},
		"a path":           {nil, "default", "../nodes", nil, "../nodes"},
		"a namespace path": {nil, "default/../kube-system", "web-0", nil, "kube-system"},
		"no namespace":     {nil, "", "web-0", nil, "in namespace"},
		"no name":          {nil, "default", "", nil, "in namespace"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(t, test.answer)
			cluster := server.client().Cluster()
			pods, err := cluster.PodsNamed(within(t, time.Minute), test.namespace, test.name)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("PodsNamed() = %v, %v", pods, err)
			}
			var got []string
			for _, pod := range pods {
				got = append(got, string(pod.UID))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			requests := server.seen()
			if test.answer == nil {
				_, err := cluster.Pod(within(t, time.Minute), test.namespace, test.name)
				if err == nil || len(requests)+len(server.seen()) > 0 {
					t.Errorf("the apiserver was asked; Pod() = %v", err)
				}
				return
			}
			want := "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3Dnode-a%2Cmetadata.name%3Dweb-0&limit=500"
			if got := requests[0].URL.Path + "?" + requests[0].URL.Query().Encode(); got != want || len(requests) != 1 {
				t.Errorf("%d requests: %s", len(requests), got)
			}
		})
	}
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	tests := map[string]struct {
		answer http.HandlerFunc
		is     func(error) bool
	}{
		"401": {refusal(401, metav1.StatusReasonUnauthorized), apierrors.IsUnauthorized},
		"403": {refusal(403, metav1.StatusReasonForbidden), apierrors.IsForbidden},
		"404": {refusal(404, metav1.StatusReasonNotFound), apierrors.IsNotFound},
		"429": {text(429, "text/plain", "Too many requests", "Retry-After", "60"),
			apierrors.IsTooManyRequests},
		"429 with delay": {text(429, "text/plain", "Too many requests", "Retry-After", "60"), func(err error) bool {
			s, ok := apierrors.SuggestsClientDelay(err)
			return ok && s == 60
		}},
		"500": {refusal(500, metav1.StatusReasonInternalError), apierrors.IsInternalError},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(t, test.answer)
			cluster := server.client().Cluster()
			if _, err := cluster.Pod(within(t, time.Minute), "default", "a"); !test.is(err) {
				t.Errorf("Pod() = %v", err)
			}
			if n := len(server.seen()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// A short Retry-After is waited for once; a long one holds for all requests.
func TestRetryAfter(t *testing.T) {
	ok := object(t, podList("7", ""))
	busy := func(seconds string) http.HandlerFunc {
		return text(429, "text/plain", "Too many requests", "Retry-After", seconds)
	}
	t.Run("short", func(t *testing.T) {
		server := newFakeServer(t, script(busy("1"), ok))
		start := time.Now()
		if _, err := server.client().Cluster().Pods(within(t, time.Minute)); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < time.Second {
			t.Errorf("asked again after %s", took)
		}
	})
	t.Run("no time for it", func(t *testing.T) {
		server := newFakeServer(t, script(busy("3"), ok))
		_, err := server.client().Cluster().Pods(within(t, 5500*time.Millisecond))
		if n := len(server.seen()); !apierrors.IsTooManyRequests(err) || n != 1 {
			t.Errorf("Pods() = %v after %d requests, want 429 at once", err, n)
		}
	})
	t.Run("long", func(t *testing.T) {
		server := newFakeServer(t, busy("100000"))
		c := server.client()
		for range 3 {
			_, err := c.Cluster().Pods(within(t, time.Minute))
			if seconds, delayed := apierrors.SuggestsClientDelay(err); !delayed || seconds < 290 {
				t.Errorf("Pods() = %v, delay %d", err, seconds)
			}
		}
		if err := c.PatchNodeStatus(t.Context(), []byte("{}")); !apierrors.IsTooManyRequests(err) {
			t.Errorf("PatchNodeStatus() = %v", err)
		}
		if n := len(server.seen()); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		if left := c.pause(); left > maxPause {
			t.Errorf("silenced for %s", left)
		}
	})
	t.Run("writes do not wait", func(t *testing.T) {
		server := newFakeServer(t, busy("1"))
		err := server.client().PatchNodeStatus(within(t, time.Minute), []byte("{}"))
		if n := len(server.seen()); !apierrors.IsTooManyRequests(err) || n != 1 {
			t.Errorf("PatchNodeStatus() = %v after %d requests", err, n)
		}
	})
}

func TestDeadline(t *testing.T) {
	server := newFakeServer(t, mute)
	c := server.client()
	_, err := c.Cluster().Pods(within(t, 200*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Pods() = %v, want DeadlineExceeded", err)
	}
	c.config.Timeout = 200 * time.Millisecond
	if _, err = c.Cluster().Node(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Node() = %v, want DeadlineExceeded after the client's own timeout", err)
	}
	c.config.Timeout = time.Minute
	server.set(object(t, podList("7", "")))
	if _, err := c.Cluster().Pods(t.Context()); err != nil {
		t.Errorf("Pods() = %v afterwards", err)
	}
}
