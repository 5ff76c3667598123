package pages

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/web"
	control "github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

// The page shows subscriptions, the reason if one is stuck, and dead letters; receivers' responses are shown as text.
func TestSubscriptionsPage(t *testing.T) {
	c := newCenter(t)
	store, err := control.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"))
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	const letter = `{"subscription":"tickets","id":"00000000000000000007","offset":"7","cluster":"prod","node":"node-1",
	 "type":"io.github.nodeagent.fault.raised.v1","reason":"500: <script>alert(1)</script>","at":"2026-01-02T03:04:05Z"}`
	_, err = store.Put(t.Context(), "dead-letters", "tickets.00000000000000000007", []byte(letter), 0)
	must(t, err)
	settings := deliver.Settings{Targets: []deliver.Target{{URL: "https://hooks.example.com/", SecretFile: "/none"}},
		Subscriptions: []deliver.Subscription{{Name: "tickets", URL: "https://hooks.example.com/b"}}}
	manager, err := deliver.Open(t.Context(), deliver.Config{Settings: settings, Journal: c.Journal, Store: store,
		Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, manager.Pause(t.Context(), deliver.Who{Name: "<i>me"}, "tickets"))
	delivers := &api.Deliveries{Manager: func() *deliver.Manager { return manager }}
	another := &api.Deliveries{Manager: func() *deliver.Manager { return nil },
		Forward: func(ctx context.Context, q api.Question) (api.Reply, error) { return delivers.Answer(ctx, q), nil }}
	sessions := web.NewSessions(store, "eventcenter", false, time.Now)
	page := func(d *api.Deliveries) http.Handler {
		return New(api.New(api.Config{Journal: c.Journal, Model: c.Model, Log: slog.New(slog.DiscardHandler), Deliveries: d}),
			sessions, nil, "")
	}
	handler := page(delivers)
	code, _, err := sessions.Code(t.Context(), web.Person{Name: "me", Operator: true})
	must(t, err)
	cookie, err := sessions.SignIn(t.Context(), "192.0.2.1", code)
	must(t, err)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/subscriptions", nil)
	stranger := httptest.NewRecorder()
	handler.ServeHTTP(stranger, r)
	expecttest.Equal(t, "not signed in", http.StatusSeeOther, stranger.Code)
	r.AddCookie(cookie)
	for name, handler := range map[string]http.Handler{"delivers": handler, "another replica": page(another)} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		expecttest.Has(t, name, w.Body.String(), "tickets", "paused</span> by &lt;i&gt;me", "<h2>Dead letters</h2>",
			"500: &lt;script&gt;", `href="/nodes/prod/node-1"`, "00000000000000000007", `href="/v1/subscriptions"`)
	}
}
