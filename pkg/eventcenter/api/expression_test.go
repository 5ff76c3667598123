package api_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// An expression filters both pages and streams; a wrong or too costly one is refused.
func TestExpression(t *testing.T) {
	c := newCenter(t, nil)
	c.send(raised("a", 1, "sda", finding.Fatal), raised("a", 2, "sdb", finding.Fatal), raised("a", 3, "sda", finding.Info))
	query := "?cel=" + url.QueryEscape(`data.subject.name == "sda" && severity == "fatal"`)
	page := get[api.List](c, "/v1/events"+query)
	if len(page.Events) != 1 || page.Events[0].Offset != 1 || page.Next != 3 {
		t.Errorf("%+v", page)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := c.request(http.MethodGet, "/v1/events"+query, "", "").WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(r)
	must(t, err)
	defer response.Body.Close()
	c.send(raised("a", 4, "sdb", finding.Fatal), raised("b", 1, "sda", finding.Fatal))
	streamed, buffer := "", make([]byte, 4096)
	for !strings.Contains(streamed, "id: 5\ndata") {
		n, err := response.Body.Read(buffer)
		must(t, err)
		streamed += string(buffer[:n])
	}
	if strings.Count(streamed, "\ndata: {\"offset\":") != 2 { // 1 and 5
		t.Error(streamed)
	}
	for text, want := range map[string]string{`sev == "x"`: "undeclared", `data.all(a, data.all(b, a == b))`: "too costly"} {
		c.answers(text, c.request(http.MethodGet, "/v1/events?cel="+url.QueryEscape(text), "", ""), 400, want)
	}
	c.get("/v1/events?cel="+url.QueryEscape("data.subject > 3"), &page)
	expecttest.Equal(t, "events", 0, len(page.Events))
	expecttest.Has(t, "metrics", c.text("/metrics"), "expression_errors_total 5")
}
