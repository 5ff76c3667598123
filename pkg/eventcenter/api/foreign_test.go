package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expect"
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
			want := `"duplicates":1,"conflicts":0`
			if mode == "binary" { // the first
				want = `"stored":1`
			}
			c.answers(mode, r, http.StatusOK, want)
		}
	}
	var all api.List
	c.get("/v1/events", &all)
	for i, sent := range []cloudevents.Event{e, text} {
		var got cloudevents.Event
		must(t, json.Unmarshal(all.Events[i].Event, &got))
		expect.Equal(t, "event", sent.String(), got.String())
	}
	c.answers("binary with data that is no JSON", c.binary("3", "application/json", "{ no JSON"), 400, "no JSON")
}

// binary is the request of an event in binary mode.
func (c *center) binary(id, media, data string) *http.Request {
	c.t.Helper()
	r := c.request(http.MethodPost, "/v1/events", media, data)
	for name, value := range map[string]string{"specversion": "1.0", "id": id, "source": "urn:x", "type": "x"} {
		r.Header.Set("Ce-"+name, value)
	}
	return r
}

// A sender that asks first, as CloudEvents web hooks do, learns that it may send, and how often.
func TestHandshake(t *testing.T) {
	c := newCenter(t, nil)
	r := c.request(http.MethodOptions, "/v1/events", "", "")
	r.Header.Set("WebHook-Request-Origin", "sender.example.com")
	r.Header.Set("WebHook-Request-Rate", "120")
	response, _ := c.do(r)
	if response.StatusCode != 200 || response.Header.Get("WebHook-Allowed-Origin") != "sender.example.com" ||
		response.Header.Get("WebHook-Allowed-Rate") != "6000" || !strings.Contains(response.Header.Get("Allow"), "POST") {
		t.Errorf("%d %v", response.StatusCode, response.Header)
	}
	if response, _ := c.do(c.request(http.MethodOptions, "/v1/events", "", "")); response.Header.Get("WebHook-Allowed-Origin") != "" {
		t.Error("what was not asked is answered")
	}
}

// Whatever foreign senders send, the list of events stays valid for strict JSON parsers, and each event is unchanged.
func TestForeignBytes(t *testing.T) {
	c := newCenter(t, nil)
	for i, test := range []struct{ media, body string }{{"application/octet-stream", "\xff\x00"},
		{"text/plain; charset=latin1", "\xe9"}, {"application/vnd.x+json", `{"a": 1e400}`},
		{"application/json; charset=utf-8", `[1]`}} {
		c.answers(test.media, c.binary(fmt.Sprint(i), test.media, test.body), 200)
	}
	invalid := `{"specversion":"1.0","id":"9","source":"urn:x","type":"x","data":"` + "\xff" + `"}`
	c.answers("invalid UTF-8", c.request(http.MethodPost, "/v1/events", single, invalid), 400)
	text := c.text("/v1/events")
	expect.Has(t, "the list", text, `"data_base64":"/wA="`, `"data_base64":"6Q=="`, `"data":{"a":1e400}`, `"data":[1]`)
	if _, err := event.ReadEnvelope([]byte(`{"specversion":"1.0","id":"1","source":"u","type":"t","data":` + text + `}`)); err != nil {
		t.Errorf("a strict parser refuses the answer: %v", err)
	}
}
