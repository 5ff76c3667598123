package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
)

// goneJournal fails as soon as the client has gone.
type goneJournal struct{ journal.Journal }

func (goneJournal) Append(ctx context.Context, _ []journal.Event) (journal.Appended, error) {
	return journal.Appended{}, ctx.Err()
}

func (goneJournal) Read(ctx context.Context, _ journal.Query) (journal.Page, error) {
	return journal.Page{}, ctx.Err()
}

func (goneJournal) Report(ctx context.Context, _ report.Period, _ string) (report.Report, error) {
	return report.Report{}, ctx.Err()
}

// A client that has gone is no error of the center: neither in the metrics nor in the log. An ended context of a forwarded
// request means that another replica works: that is for the client to know.
func TestClientGone(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		gone := goneJournal{config.Journal}
		config.Journal, config.Reports = gone, gone
		config.Deliveries = func() *deliver.Manager { return nil }
		config.Forward = func(ctx context.Context, _ api.Forwarded) (api.Answer, error) { return api.Answer{}, ctx.Err() }
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, path := range []string{"GET /v1/events", "GET /v1/events?after=7", "GET /v1/events?cel=true", "POST /v1/events",
		"GET /v1/reports/daily", "GET /v1/audit"} {
		method, path, _ := strings.Cut(path, " ")
		r := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path,
			strings.NewReader(string(encode(t, raised("n1", 1, "x", "fatal")))))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", batch)
		w := httptest.NewRecorder()
		if c.handler.ServeHTTP(w, r); w.Code != 499 {
			t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	if c.log.Len() > 0 {
		t.Errorf("log: %s", c.log)
	}
	_, metrics := c.do(c.request(http.MethodGet, "/metrics", "", ""))
	for _, wrong := range []string{`code="503"`, "append_failures_total 1", `limited_total{limit="busy"}`} {
		if strings.Contains(metrics, wrong) {
			t.Errorf("%s in %s", wrong, metrics)
		}
	}
	answer := c.handler.(*api.Server).Answer(ctx, api.Forwarded{Method: http.MethodGet, URI: "/v1/audit"})
	if answer.Status != http.StatusServiceUnavailable {
		t.Errorf("forwarded: %d", answer.Status)
	}
}
