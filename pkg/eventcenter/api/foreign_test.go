package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// The center understands a sender that uses the CloudEvents SDK, in all three modes, and returns its events unchanged;
// sent again, in any mode, they are duplicates.
func TestForeignSender(t *testing.T) {
	c := newCenter(t, nil)
	e := cloudevents.New()
	e.SetID("1")
	e.SetSource("urn:example:ä")
	e.SetType("com.example.thing")
	e.SetSubject("50 % of a \"thing\" é")
	e.SetExtension("severity", "warning")
	must(t, e.SetData(cloudevents.ApplicationJSON, map[string]any{"a": 1}))
	text := cloudevents.New()
	text.SetID("2")
	text.SetSource("urn:example:x")
	text.SetType("com.example.text")
	must(t, text.SetData("text/plain", "<b>\n"))
	ctx := t.Context()
	stored := 2
	for _, mode := range []string{"binary", "structured", "batch"} {
		for _, sent := range []cloudevents.Event{e, text} {
			var r *http.Request
			var err error
			switch mode {
			case "binary":
				r, err = cehttp.NewHTTPRequestFromEvent(ctx, c.url+"/v1/events", sent)
			case "structured":
				r = c.request(http.MethodPost, "/v1/events", "", "")
				err = cehttp.WriteRequest(binding.WithForceStructured(ctx), (*binding.EventMessage)(&sent), r)
			case "batch":
				r, err = cehttp.NewHTTPRequestFromEvents(ctx, c.url+"/v1/events", []cloudevents.Event{sent})
			}
			must(t, err)
			response, answer := c.do(r)
			want := `"stored":1`
			if stored == 0 {
				want = `"duplicates":1,"conflicts":0`
			}
			if response.StatusCode != http.StatusOK || !strings.Contains(answer, want) {
				t.Errorf("%s: %d %s, want %s", mode, response.StatusCode, answer, want)
			}
			stored = max(0, stored-1)
		}
	}
	var all api.List
	c.get("/v1/events", &all)
	for i, sent := range []cloudevents.Event{e, text} {
		var got cloudevents.Event
		must(t, json.Unmarshal(all.Events[i].Event, &got))
		if diff := cmp.Diff(sent.String(), got.String()); diff != "" {
			t.Error(diff)
		}
	}
	r := c.request(http.MethodPost, "/v1/events", "application/json", "{ no JSON")
	for name, value := range map[string]string{"specversion": "1.0", "id": "3", "source": "urn:x", "type": "x"} {
		r.Header.Set("Ce-"+name, value)
	}
	if response, answer := c.do(r); response.StatusCode != 400 || !strings.Contains(answer, "no JSON") {
		t.Errorf("binary with data that is no JSON: %d %s", response.StatusCode, answer)
	}
}
