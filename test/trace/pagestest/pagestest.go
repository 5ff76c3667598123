// Package pagestest serves the pages of a cluster in which two pods were missed.
package pagestest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/pages"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// rights lets everybody who is signed in read the pods of the namespaces in it; empty: of all.
type rights struct{ namespaces map[string]bool }

func (r rights) Authorize(context.Context, web.Identity, string, string) error { return nil }

func (r rights) AuthorizeResource(_ context.Context, _ web.Identity, verb, resource, namespace string) error {
	if verb == "get" && resource == "pods" && (r.namespaces == nil || r.namespaces[namespace]) {
		return nil
	}
	return &web.Refusal{Status: http.StatusForbidden, Reason: "no right"}
}

// versions stores deliveries of three days ago, whose sandboxes took longer with one version of kubelet.
func versions(t testing.TB, kept *store.Store, now time.Time) {
	t.Helper()
	builds, batch := map[int64]record.Build{}, follow.Batch{}
	for i := range 500 {
		b := record.Build{Pool: "gpu", Kubelet: fmt.Sprint("v1.36.", i%2), Runtime: "containerd://2.1"}
		builds[b.ID()] = b
		a := follow.Act{JudgedAt: now.AddDate(0, 0, -3), Verdict: verdict.Verdict{Outcome: verdict.Delivered},
			Timeline: record.Timeline{Act: record.Creation, UID: fmt.Sprint("v", i), Namespace: "default", Name: fmt.Sprint("v", i), Build: b.ID()}}
		sandbox := time.Duration(1500+i)*time.Millisecond + time.Duration(i%2)*2*time.Second
		for p, after := range map[record.Point]time.Duration{record.Created: 0, record.Scheduled: 1, record.KubeletSaw: time.Second,
			record.SandboxReady: time.Second + sandbox, record.Running: 8 * time.Second} {
			a.Timeline.Set(p, record.Mark{Source: record.Own, Arrival: a.JudgedAt.Add(after - time.Minute)})
		}
		batch.Judged = append(batch.Judged, a)
	}
	err := kept.Save(t.Context(), batch)
	for i := 0; i < 4*24 && err == nil; i++ {
		err = kept.CountHour(t.Context(), now, builds)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Serve serves the pages of a cluster in which the pods default/<b>late and team/gone were missed, until the test ends.
// People who are signed in may get the pods of some namespaces; nil: of all.
func Serve(t testing.TB, namespaces map[string]bool) (url string, sessions *web.Sessions) {
	t.Helper()
	kept, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "data"), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	follower, now := follow.New(follow.Config{Promised: time.Minute}), time.Now()
	began := now.Add(-2 * time.Minute)
	follower.Synced(began, true)
	for _, name := range []string{"default/<b>late", "team/gone"} {
		namespace, name, _ := strings.Cut(name, "/")
		follower.Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + namespace), CreationTimestamp: metav1.NewTime(began)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/1 nodes are available: 1 Insufficient cpu."}}}}, follow.Watched, began.Add(3*time.Second))
	}
	for at := began.Add(4 * time.Second); at.Before(now); at = at.Add(4 * time.Second) {
		follower.Alive(at)
	}
	batch := follower.Judge(now)
	if err := kept.Save(t.Context(), batch); err != nil || len(batch.Judged) != 2 {
		t.Fatalf("%v, %d judged", err, len(batch.Judged))
	}
	follower.Stored(batch)
	versions(t, kept, now)
	follower.Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-<b>1"}}, false, now)
	control, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = control.Close() })
	sessions = web.NewSessions(control, "tracecenter", false, time.Now)
	log := slog.New(slog.DiscardHandler)
	server := &api.Server{Follower: follower, Store: kept, Prober: probe.New(nil, follower, log), Log: log, Now: time.Now, Loopback: true,
		Access: rights{namespaces}, Authenticate: sessions.Authenticate(func(*http.Request) (web.Identity, error) { return web.Identity{}, errors.New("who?") })}
	server.Pages = pages.New(server, sessions, nil, "v1")
	served := httptest.NewServer(server.Handler())
	t.Cleanup(served.Close)
	return served.URL, sessions
}
