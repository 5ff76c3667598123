package pages

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// rights lets everybody who is signed in read the pods of the namespaces in it; empty: of all.
type rights struct {
	*web.Sessions
	namespaces map[string]bool
}

func (r rights) Authenticate(request *http.Request) (web.Identity, error) {
	return r.Sessions.Authenticate(func(*http.Request) (web.Identity, error) { return web.Identity{}, errors.New("who?") })(request)
}

func (r rights) Authorize(context.Context, web.Identity, string, string) error { return nil }

func (r rights) AuthorizeResource(_ context.Context, _ web.Identity, verb, resource, namespace string) error {
	if verb == "get" && resource == "pods" && (r.namespaces == nil || r.namespaces[namespace]) {
		return nil
	}
	return &web.Refusal{Status: http.StatusForbidden, Reason: "no right"}
}

type site struct {
	t       *testing.T
	url     string
	browser *http.Client
}

// start serves the pages of a cluster in which the pods default/<b>late and team/gone were missed.
func start(t *testing.T, namespaces map[string]bool) *site {
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
	control, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = control.Close() })
	sessions, log := web.NewSessions(control, "tracecenter", false, time.Now), slog.New(slog.DiscardHandler)
	server := &api.Server{Follower: follower, Store: kept, Prober: probe.New(nil, follower, log), Log: log, Now: time.Now, Loopback: true,
		Access: rights{sessions, namespaces}}
	server.Pages = New(Config{Server: server, Sessions: sessions, Log: log, Version: "v1"})
	served := httptest.NewServer(server.Handler())
	t.Cleanup(served.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t, served.URL, &http.Client{Jar: jar}}
	if status, text := s.open("/failures"); status != http.StatusOK || !strings.Contains(text, "Sign in") || strings.Contains(text, "CapacityExhausted") {
		t.Errorf("not signed in: %d %s", status, text)
	}
	code, _, err := sessions.Code(t.Context(), web.Person{Name: "ada", Cluster: "cluster", User: &web.User{Name: "ada"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.browser.PostForm(s.url+"/login", url.Values{"code": {code}})
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return s
}

func (s *site) open(path string) (int, string) {
	s.t.Helper()
	answer, err := s.browser.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestPages(t *testing.T) {
	s := start(t, nil)
	for path, wants := range map[string][]string{
		"/": {"<dd>Unknown</dd>", "fewer than 20", "CapacityExhausted", "No component is probed yet", "not judged yet"},
		"/failures?window=1d&reason=CapacityExhausted": {"2 misses in 1d", "/pods/default/%3Cb%3Elate", "&lt;b&gt;late", "team/gone"},
		"/failures?namespace=team":                     {"1 misses in 1h", "team/gone"},
		"/failures?reason=InitSlow":                    {"No miss is like this"},
		"/pods/team/gone":                              {"CapacityExhausted (system)", "queue and schedule, of scheduler", "<svg", "<rect", "Add nodes", "uid-team"},
		"/pods/uid-default":                            {"&lt;b&gt;late", "<rect"},
		"/pods?pod=team/gone":                          {"CapacityExhausted (system)"},
		"/pods":                                        {"Namespace/name, or UID"},
		"/terminating":                                 {"There is none."},
		"/components":                                  {"No component is probed yet"},
	} {
		status, text := s.open(path)
		for _, want := range wants {
			if status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, no %q in %s", path, status, want, text)
			}
		}
		if strings.Contains(text, "<b>late") {
			t.Errorf("%s: a name is shown as markup", path)
		}
	}
	for path, want := range map[string]int{"/pods/none": 404, "/pods/a/b": 404, "/nothing": 404, "/failures?window=2m": 400, "/v1/failures": 200} {
		if status, text := s.open(path); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// Whoever may get the pods of one namespace sees no pod of another: not by page, JSON, search, or a guessed UID.
func TestPagesOfOneNamespace(t *testing.T) {
	s := start(t, map[string]bool{"team": true})
	for path, want := range map[string]int{"/": 200, "/?namespace=team": 200, "/?namespace=default": 200, "/failures": 403, "/failures?namespace=default": 403,
		"/failures?namespace=team": 200, "/terminating": 403, "/terminating?namespace=team": 200, "/pods/team/gone": 200, "/pods/uid-team": 200,
		"/pods/default/%3Cb%3Elate": 404, "/pods/uid-default": 404, "/pods?pod=uid-default": 404, "/v1/pods/uid-default": 404, "/v1/pods/uid-team": 200,
		"/v1/pods/default/%3Cb%3Elate": 403, "/v1/failures": 403, "/v1/failures?namespace=team": 200, "/v1/slis": 403, "/v1/slis?namespace=default": 403} {
		status, text := s.open(path)
		if status != want || strings.Contains(text, "0/1 nodes") && !strings.Contains(path, "team") || strings.Contains(text, "&lt;b&gt;late") && status == 200 {
			t.Errorf("%s: %d, want %d: %s", path, status, want, text)
		}
	}
}
