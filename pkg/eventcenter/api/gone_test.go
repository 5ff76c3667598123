package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// goneJournal fails as soon as the client has gone, which it does while events are stored.
type goneJournal struct {
	journal.Journal
	leave func()
}

func (j *goneJournal) Append(ctx context.Context, _ []journal.Event) (journal.Appended, error) {
	j.leave()
	return journal.Appended{}, ctx.Err()
}

func (j *goneJournal) Read(ctx context.Context, _ journal.Query) (journal.Page, error) {
	j.leave()
	return journal.Page{}, ctx.Err()
}

// A client that has gone is no error of the center: neither in the metrics nor in the log. If it can still read, it
// gets the answer. An ended context of a forwarded request means that another replica works: the client must know that.
func TestClientGone(t *testing.T) {
	gone := &goneJournal{}
	deliveries := &api.Deliveries{Manager: func() *deliver.Manager { return nil },
		Forward: func(ctx context.Context, _ api.Question) (api.Reply, error) { return api.Reply{}, ctx.Err() }}
	c := newCenter(t, func(config *api.Config) {
		gone.Journal = config.Journal
		config.Journal, config.Deliveries = gone, deliveries
	})
	ask := func(method, path, token string, body io.Reader) int {
		ctx, cancel := context.WithCancel(t.Context())
		gone.leave = cancel
		if method == http.MethodGet || body == nil {
			cancel()
		}
		if body == nil {
			body = iotest.ErrReader(os.ErrDeadlineExceeded)
		}
		r := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", batch)
		w := httptest.NewRecorder()
		if c.handler.ServeHTTP(w, r); w.Body.Len() == 0 {
			t.Errorf("%s %s: %d without a body", method, path, w.Code)
		}
		return w.Code
	}
	events := func() io.Reader { return strings.NewReader(string(encode(t, raised("n1", 1, "x", "fatal")))) }
	for _, path := range []string{"GET /v1/events", "GET /v1/events?after=7", "GET /v1/events?cel=true", "POST /v1/events",
		"GET /v1/audit"} {
		method, path, _ := strings.Cut(path, " ")
		if status := ask(method, path, token, events()); status != http.StatusServiceUnavailable {
			t.Errorf("%s %s: %d", method, path, status)
		}
	}
	if status := ask(http.MethodPost, "/v1/events", token, nil); status != http.StatusRequestTimeout {
		t.Errorf("a stalled body: %d", status)
	}
	if status := ask(http.MethodGet, "/v1/events", "wrong", nil); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", status)
	}
	if c.log.Len() > 0 {
		t.Errorf("log: %s", c.log)
	}
	_, metrics := c.do(c.request(http.MethodGet, "/metrics", "", ""))
	for text, want := range map[string]bool{`code="503"`: false, "append_failures_total 1": false,
		`limited_total{limit="busy"}`:                          false,
		`requests_total{code="499",route="GET /v1/events"} 3`:  true,
		`requests_total{code="499",route="POST /v1/events"} 1`: true,
		`requests_total{code="499",route="GET /v1/audit"} 1`:   true,
		`requests_total{code="408",route="POST /v1/events"} 1`: true,
		`requests_total{code="401",route="GET /v1/events"} 1`:  true,
		`identities_total{by="",cluster="",result="401"} 1`:    true} {
		if strings.Contains(metrics, text) != want {
			t.Errorf("%s: want %t in %s", text, want, metrics)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answer := deliveries.Answer(ctx, api.Question{Route: "GET /v1/audit"})
	if answer.Refusal == nil || answer.Refusal.Status != http.StatusServiceUnavailable {
		t.Errorf("forwarded: %+v", answer)
	}
}

// If clients give up because the journal hangs, the metrics and the log show that.
func TestJournalHangs(t *testing.T) {
	for name, want := range map[string]string{
		"POST /v1/events":         `msg="store events failed" after=10s`,
		"GET /v1/events":          `msg="read the journal failed" route="GET /v1/events" after=10s`,
		"GET /v1/events?cel=true": `msg="read the journal failed" route="GET /v1/events" after=10s`,
	} {
		gone, now := &goneJournal{}, time.Now()
		c := newCenter(t, func(config *api.Config) {
			gone.Journal, config.Journal = config.Journal, gone
			config.Now = func() time.Time { return now }
		})
		ctx, cancel := context.WithCancel(t.Context())
		gone.leave = func() {
			now = now.Add(10 * time.Second)
			cancel()
		}
		method, path, _ := strings.Cut(name, " ")
		r := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path,
			strings.NewReader(string(encode(t, raised("n1", 1, "x", "fatal")))))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", batch)
		c.handler.ServeHTTP(httptest.NewRecorder(), r)
		if log := c.log.String(); !strings.Contains(log, "level=WARN "+want) || strings.Count(log, "\n") != 1 {
			t.Errorf("%s: log: %s", name, log)
		}
		_, metrics := c.do(c.request(http.MethodGet, "/metrics", "", ""))
		if strings.Contains(metrics, "append_failures_total 1") != (method == http.MethodPost) {
			t.Error(metrics)
		}
	}
}
