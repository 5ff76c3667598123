package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func nodeOf(uid types.UID, version string) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: uid, ResourceVersion: version}}
}

func nodeEvent(kind string, node *corev1.Node) string {
	data, _ := json.Marshal(map[string]any{"type": kind, "object": node})
	return string(data)
}

// The watch begins at the version of the read, resumes at its last version, and passes on all changes: also another
// Node of the same name. If it cannot resume, the Node is read again.
func TestFollowNode(t *testing.T) {
	const tooOld = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`
	read := object(t, nodeOf("one", "7"))
	for name, test := range map[string]struct {
		answers []http.HandlerFunc
		queries []string
		seen    []types.UID
		next    string
		fails   bool
	}{
		"nothing changes": {[]http.HandlerFunc{read, stream()}, []string{"", "7"}, []types.UID{"one"}, "7", false},
		"bookmark": {[]http.HandlerFunc{read, stream(nodeEvent("BOOKMARK", nodeOf("", "9")))}, []string{"", "7"},
			[]types.UID{"one"}, "9", false},
		"change": {[]http.HandlerFunc{read, stream(nodeEvent("MODIFIED", nodeOf("one", "9")))}, []string{"", "7"},
			[]types.UID{"one", "one"}, "9", false},
		"made again": {[]http.HandlerFunc{read, stream(nodeEvent("ADDED", nodeOf("two", "9")))}, []string{"", "7"},
			[]types.UID{"one", "two"}, "9", false},
		"deleted": {[]http.HandlerFunc{read, stream(nodeEvent("DELETED", nodeOf("one", "9")))}, []string{"", "7"},
			[]types.UID{"one"}, "", true},
		"too old": {[]http.HandlerFunc{read, stream(tooOld)}, []string{"", "7"}, []types.UID{"one"}, "", true},
		"another's": {[]http.HandlerFunc{read, stream(nodeEvent("MODIFIED", &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "other", UID: "x", ResourceVersion: "9"}}))}, []string{"", "7"}, []types.UID{"one"}, "", true},
		"no version": {[]http.HandlerFunc{read, stream(nodeEvent("MODIFIED", nodeOf("one", "")))}, []string{"", "7"},
			[]types.UID{"one"}, "", true},
		"no Node": {[]http.HandlerFunc{refusal(http.StatusNotFound, metav1.StatusReasonNotFound)}, []string{""}, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, script(test.answers...))
			c := f.client()
			var seen []types.UID
			next, err := c.followNode(t.Context(), "", func(n *corev1.Node) { seen = append(seen, n.UID) },
				func() bool { return false })
			if next != test.next || (err != nil) != test.fails {
				t.Errorf("followNode() = %q, %v", next, err)
			}
			var queries []string
			for _, r := range f.seen() {
				queries = append(queries, r.URL.Query().Get("resourceVersion"))
				if q := r.URL.Query(); q.Get("watch") != "" && q.Get("fieldSelector") != "metadata.name="+testNode {
					t.Errorf("request %s", r.URL)
				}
			}
			if diff := cmp.Diff(test.queries, queries) + cmp.Diff(test.seen, seen); diff != "" {
				t.Error(diff)
			}
			if test.next == "" {
				return
			}
			f.set(stream()) // resumes without reading the Node
			if again, err := c.followNode(t.Context(), next, func(*corev1.Node) { t.Error("read again") },
				func() bool { return false }); again != next || err != nil {
				t.Errorf("followNode() = %q, %v", again, err)
			}
		})
	}
}

// WatchedNode returns a Node only while the watch runs. Without the right to watch, the Node is read, and passed to
// see.
func TestWatchedNode(t *testing.T) {
	for name, refused := range map[string]bool{"allowed": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Query().Get("watch") == "":
					object(t, nodeOf("one", "7"))(w, r)
				case refused:
					refusal(http.StatusForbidden, metav1.StatusReasonForbidden)(w, r)
				default:
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintln(w, nodeEvent("MODIFIED", nodeOf("one", "8")))
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}
			})
			c := f.client()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			var seen atomic.Int32
			asked := make(chan struct{}, 100)
			go func() {
				ended <- c.WatchNode(ctx, func(*corev1.Node) { seen.Add(1) }, func() bool {
					asked <- struct{}{}
					return false
				})
			}()
			waitFor(t, func() bool { return seen.Load() > 0 })
			if refused {
				<-asked // the waiting time
			} else {
				waitFor(t, func() bool { n := c.WatchedNode(); return n != nil && n.ResourceVersion == "8" })
			}
			if refused && c.WatchedNode() != nil {
				t.Error("watched without a watch")
			}
			cancel()
			if err := <-ended; err != nil || c.WatchedNode() != nil {
				t.Errorf("WatchNode() = %v; watched after it: %v", err, c.WatchedNode())
			}
			if n := len(slices.DeleteFunc(f.seen(), func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" })); n != 1 {
				t.Errorf("the Node was read %d times", n)
			}
		})
	}
}

// Without the right to watch, the next read is due within two minutes after there is a reason for it.
func TestRestEndsWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		(&Client{}).restNode(t.Context(), nodeReadCalm, func() bool { return time.Since(began) >= 10*time.Minute+time.Second })
		if rested := time.Since(began); rested > 12*time.Minute {
			t.Errorf("rested for %s", rested)
		}
		began = time.Now()
		(&Client{}).restNode(t.Context(), nodeReadCalm, func() bool { return false })
		if rested := time.Since(began); rested != nodeReadCalm {
			t.Errorf("in peace: rested for %s", rested)
		}
	})
}

func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never")
		}
	}
}
