package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Half of a surrogate pair is refused in each mode. If an older center has stored one, the list of events is still JSON
// for every parser, and has the event as bytes.
func TestHalfPairs(t *testing.T) {
	c := newCenter(t, nil)
	data := `{"\ud800":"�"}`
	whole := `{"specversion":"1.0","id":"1","source":"urn:a","type":"x","data":` + data + `}`
	binary := c.request(http.MethodPost, "/v1/events", "application/json", data)
	for name, value := range map[string]string{"specversion": "1.0", "id": "1", "source": "urn:a", "type": "x"} {
		binary.Header.Set("Ce-"+name, value)
	}
	for mode, r := range map[string]*http.Request{"binary": binary,
		"structured": c.request(http.MethodPost, "/v1/events", single, whole),
		"batch":      c.request(http.MethodPost, "/v1/events", batch, "["+whole+"]")} {
		if r, answer := c.do(r); r.StatusCode != http.StatusBadRequest || !strings.Contains(answer, "half of a surrogate pair") {
			t.Errorf("%s: %d %s", mode, r.StatusCode, answer)
		}
	}
	if _, err := c.Journal.Append(t.Context(), []journal.Event{{Source: "urn:a", ID: "1", Type: "x", JSON: []byte(whole)}}); err != nil {
		t.Fatal(err)
	}
	_, list := c.do(c.request(http.MethodGet, "/v1/events", "", ""))
	if event.HasHalfPair([]byte(list)) || !strings.Contains(list, `"data_base64":"eyJzcGVj`) {
		t.Error(list)
	}
}

// A source is a URI-reference.
func TestSources(t *testing.T) {
	c := newCenter(t, nil)
	for source, want := range map[string]int{"urn:a%20b": 200, "/ä?q=1#f": 200, "http://[::1]/a": 200, "a b": 400, "urn:a b": 400,
		"/a<b>": 400, `/a\\b`: 400, "urn:{a}": 400} {
		r, answer := c.post(single, `{"specversion":"1.0","id":"1","source":"`+source+`","type":"x"}`)
		if r.StatusCode != want || want == 400 && !strings.Contains(answer, "source: must be a URI-reference") {
			t.Errorf("%s: %d %s", source, r.StatusCode, answer)
		}
	}
}
