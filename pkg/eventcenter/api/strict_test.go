package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
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

// A name in our data that is a known one but for its case is refused: some readers take it for that one, others do not.
// Names of facts and names of newer senders are free.
func TestNamesInAnotherCase(t *testing.T) {
	c := newCenter(t, nil)
	fault := `"check":"fan","reason":"R","severity":"fatal","subject":{"kind":"fan","name":"1"}`
	agents := strings.Trim(encode(t, raised("a", 1, "sda", "fatal")), "[]")
	snapshot := agentEvent(event.NodeSnapshot, "a", 1)
	snapshot.Stream = stream1[:25] + "Y"
	snapshot.Data = event.Snapshot{AsOf: event.Sequence(1), Of: stream1, Part: 1, End: true,
		Faults: []event.Fault{raised("a", 1, "sda", "fatal").Data.(event.Fault)}, Leftovers: []event.Activity{}}
	parts := strings.Trim(encode(t, snapshot), "[]")
	for _, test := range []struct{ text, name string }{
		{ofDetector(strings.Replace(fault, "check", "CHECK", 1)), "CHECK"},
		{ofDetector(fault + `,"Check":"evil"`), "Check"},
		{ofDetector(fault + `,"oneſhot":true`), "oneſhot"},
		{ofDetector(strings.Replace(fault, `"kind"`, `"Kind"`, 1)), "Kind"},
		{ofDetector(strings.Replace(fault, `"kind"`, `"\u212aind"`, 1)), "Kind"},
		{strings.Replace(agents, `"reason":`, `"Reason":`, 1), "Reason"},
		{strings.Replace(parts, `"reason":`, `"Reason":`, 1), "Reason"},
		{strings.Replace(parts, `"kind":`, `"KIND":`, 1), "KIND"},
		{ofDetector(fault + `,"check":"evil"`), "check"},
		{ofDetector(fault + `,"facts":{"Check":"x","check":"y"},"ofTomorrow":{"Check":[1e400]}`), ""},
		{agents, ""}, {parts, ""},
	} {
		want := http.StatusUnprocessableEntity
		if test.name == "" {
			want = http.StatusOK
		} else if test.name == "check" { // no JSON for every parser
			want = http.StatusBadRequest
		}
		if r, answer := c.post(single, test.text); r.StatusCode != want || !strings.Contains(answer, test.name) {
			t.Errorf("%s: %d %s", test.text, r.StatusCode, answer)
		}
	}
}

// ofDetector is an event of a detector with members of a fault.
func ofDetector(members string) string {
	return `{"specversion":"1.0","id":"1","time":"2026-01-01T00:00:00Z","source":"/clusters/prod/nodes/a/fans",` +
		`"type":"io.github.nodeagent.fault.raised.v1","data":{` + members + `}}`
}

// The identity of a fault or leftover has no control characters, whoever sends it: a message may.
func TestControlCharacters(t *testing.T) {
	c := newCenter(t, nil)
	valid := `"check":"fan","reason":"Stopped","severity":"fatal","subject":{"kind":"rotor","name":"fan3","uid":"u7"},"message":"m"`
	fault := raised("a", 1, "sda", "fatal")
	snapshot, leftover := agentEvent(event.NodeSnapshot, "a", 1), agentEvent(event.LeftoverFound, "a", 2)
	snapshot.Stream = stream1[:25] + "Y"
	of := func(name string) {
		f := fault.Data.(event.Fault)
		f.Subject.Name = name
		l := event.Activity{Check: "leftovers", Kind: "leftover-found", Subject: finding.Subject{Kind: "mount", Name: name}}
		fault.Data, leftover.Data = f, l
		snapshot.Data = event.Snapshot{AsOf: event.Sequence(1), Of: stream1, Part: 1, End: true, Faults: []event.Fault{f},
			Leftovers: []event.Activity{l}}
	}
	refused := func(text, want string) {
		t.Helper()
		if r, answer := c.post(batch, "["+text+"]"); r.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", text, r.StatusCode, answer)
		}
	}
	for word, field := range map[string]string{"fan\"": "check", "Stopped": "reason", "rotor": "subject.kind", "fan3": "subject.name", "u7": "subject.uid"} {
		refused(ofDetector(strings.Replace(valid, word, `\u0000`+word, 1)), field+" has control characters")
	}
	of("a\nb")
	for _, e := range []event.Event{fault, snapshot, leftover} {
		refused(strings.Trim(encode(t, e), "[]"), "subject.name has control characters")
	}
	of("a b")
	c.send(fault, snapshot, leftover)
	if r, answer := c.post(single, ofDetector(strings.Replace(valid, `"m"`, `"m\n"`, 1))); r.StatusCode != http.StatusOK {
		t.Error(answer)
	}
}
