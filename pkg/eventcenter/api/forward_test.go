package api_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// A replica that does not deliver answers about subscriptions as the delivering one does, which records who asked; a
// request without the right is not forwarded, and if no replica delivers, the client is asked to retry.
func TestForward(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	settings := deliver.Settings{Targets: []deliver.Target{{URL: "https://hooks.example.com/", SecretFile: "/none"}}}
	manager, err := deliver.Open(t.Context(), deliver.Config{Settings: settings, Journal: &scripted{}, Store: store,
		Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	working, replicas, deliveries := 0, [2]*api.Server{}, [2]*api.Deliveries{}
	for i := range replicas {
		deliveries[i] = &api.Deliveries{
			Manager: func() *deliver.Manager {
				if working == i {
					return manager
				}
				return nil
			},
			Forward: func(ctx context.Context, q api.Question) (reply api.Reply, err error) {
				forward(t, q, &q)
				forward(t, deliveries[1-i].Answer(ctx, q), &reply)
				return reply, nil
			},
		}
		replicas[i] = api.New(api.Config{Journal: &scripted{}, Model: model.New(), Log: slog.New(slog.DiscardHandler),
			Authenticate: func(r *http.Request) (web.Identity, error) {
				return web.Identity{Name: r.Header.Get("Name"), By: "test", Any: r.Header.Get("Name") == "ada", Reads: true}, nil
			},
			Deliveries: deliveries[i]})
	}
	ask := func(replica int, name, method, path, body string) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.Header.Set("Name", name)
		w := httptest.NewRecorder()
		replicas[replica].ServeHTTP(w, r)
		if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s %s: it does not say when to come back", method, path)
		}
		return w.Code, w.Body.String()
	}
	for _, test := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"bob", "POST", "/v1/subscriptions", `{"name":"a","url":"https://hooks.example.com/a"}`, 403, "may not post"},
		{"ada", "POST", "/v1/subscriptions", `{"name":"a","url":"https://hooks.example.com/a"}`, 200, "added"},
		{"ada", "POST", "/v1/subscriptions", `{"name":"b","url":"https://elsewhere.example/"}`, 422, "elsewhere.example"},
		{"ada", "POST", "/v1/subscriptions", strings.Repeat("x", 300<<10), 400, "large"},
		{"bob", "GET", "/v1/subscriptions", "", 200, `"name":"a"`},
		{"bob", "GET", "/v1/subscriptions?x=1", "", 400, "x"},
		{"ada", "POST", "/v1/subscriptions/a/pause", "", 200, "paused"},
		{"bob", "DELETE", "/v1/subscriptions/a", "", 403, "may not delete"},
		{"bob", "GET", "/v1/dead-letters", "", 200, "deadLetters"},
		{"bob", "GET", "/v1/audit?limit=5", "", 200, `"name":"ada"`},
		{"ada", "DELETE", "/v1/subscriptions/a", "", 200, "removed"},
	} {
		status, body := ask(1, test.name, test.method, test.path, test.body)
		expecttest.Equal(t, test.name+" "+test.method+" "+test.path, test.status, status)
		expecttest.Has(t, test.path, body, test.want)
	}
	a := deliveries[0].Answer(t.Context(), api.Question{Route: "GET /v1/events"})
	if a.Refusal == nil || a.Refusal.Status != http.StatusNotFound {
		t.Errorf("what does not concern subscriptions is answered to a replica: %+v", a)
	}
	working = 2
	for replica := range replicas {
		status, _ := ask(replica, "ada", "GET", "/v1/subscriptions", "")
		expecttest.Equal(t, "no replica delivers", http.StatusServiceUnavailable, status)
	}
}

// forward copies a message as it travels between replicas.
func forward(t *testing.T, message, to any) {
	t.Helper()
	text, err := json.Marshal(message)
	must(t, err)
	must(t, json.Unmarshal(text, to))
}
