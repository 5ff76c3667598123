package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// detected is a fault of node a that a detector reports with the CloudEvents SDK, some seconds after a moment.
func detected(t *testing.T, detector, id string, kind event.Type, seconds int64, change map[string]any) cloudevents.Event {
	t.Helper()
	e := cloudevents.New()
	e.SetID(id)
	e.SetSource("/clusters/prod/nodes/a/" + detector)
	e.SetType(string(kind))
	e.SetTime(time.Unix(1000+seconds, 0))
	data := map[string]any{"check": "disk", "reason": "DiskFails", "severity": "fatal",
		"subject": map[string]any{"kind": "disk", "name": "sda"}, "message": "by " + detector}
	maps.Copy(data, change)
	must(t, e.SetData(cloudevents.ApplicationJSON, data))
	return e
}

// detecting is the request of a detector's event.
func (c *center) detecting(e cloudevents.Event) *http.Request {
	c.t.Helper()
	r := c.request(http.MethodPost, "/v1/events", "", "")
	must(c.t, cehttp.WriteRequest(binding.WithForceStructured(c.t.Context()), (*binding.EventMessage)(&e), r))
	return r
}

// sources lists the sources whose faults are active on node a.
func (c *center) sources() string {
	c.t.Helper()
	list := get[api.FaultList](c, "/v1/faults?node=a")
	var names []string
	for _, f := range list.Faults {
		names = append(names, f.Subject.Name+":"+f.Detector)
	}
	return strings.Join(names, " ")
}

// A detector other than the agent raises and ends faults of a node with plain CloudEvents. It is a second witness:
// events and snapshots of the agent do not affect the detector's faults, and vice versa.
func TestDetector(t *testing.T) {
	c := newCenter(t, nil)
	snapshot := agentEvent(event.NodeSnapshot, "a", 1)
	snapshot.Stream = stream1[:25] + "Y"
	snapshot.Data = event.Snapshot{AsOf: event.Sequence(2), Of: stream1, Part: 1, End: true, Faults: []event.Fault{},
		Leftovers: []event.Activity{}}
	cleared := raised("a", 2, "sda", "fatal")
	cleared.Type = event.FaultCleared
	for _, step := range []struct {
		name string
		send any
		want string
	}{
		{"raised by a detector", detected(t, "gpud", "1", event.FaultRaised, 1, nil), "sda:gpud"},
		{"sent again", detected(t, "gpud", "1", event.FaultRaised, 1, nil), "sda:gpud"},
		{"the agent finds the same", raised("a", 1, "sda", "fatal"), "sda: sda:gpud"},
		{"its agent ends it", cleared, "sda:gpud"},
		{"its agent's snapshot has none", snapshot, "sda:gpud"},
		{"its agent stops", agentEvent(event.AgentStopping, "a", 3), "sda:gpud"},
		{"another detector ends the same", detected(t, "bmc", "1", event.FaultCleared, 9, nil), "sda:gpud"},
		{"another reason ends", detected(t, "gpud", "2", event.FaultCleared, 2, map[string]any{"reason": "Slow"}), "sda:gpud"},
		{"it ends", detected(t, "gpud", "3", event.FaultCleared, 3, nil), ""},
		{"an older word comes late", detected(t, "gpud", "4", event.FaultUpdated, 2, nil), ""},
		{"raised again", detected(t, "gpud", "5", event.FaultRaised, 4, nil), "sda:gpud"},
		{"an older end comes late", detected(t, "gpud", "6", event.FaultCleared, 3, nil), "sda:gpud"},
		{"at the same time, later", detected(t, "gpud", "7", event.FaultCleared, 4, nil), ""},
		{"over at once", detected(t, "gpud", "8", event.FaultRaised, 5, map[string]any{"oneShot": true}), ""},
		{"the agent's", raised("a", 4, "sdb", "fatal"), "sdb:"},
		{"is not a detector's to end", detected(t, "gpud", "9", event.FaultCleared, 6,
			map[string]any{"subject": map[string]any{"kind": "disk", "name": "sdb"}}), "sdb:"},
	} {
		switch e := step.send.(type) {
		case event.Event:
			c.send(e)
		case cloudevents.Event:
			c.answers(step.name, c.detecting(e), http.StatusOK)
		}
		expecttest.Equal(t, step.name+": active", step.want, c.sources())
	}
	c.answers("again", c.detecting(detected(t, "gpud", "1", event.FaultRaised, 1, nil)), http.StatusOK, `"duplicates":1`)
	c.answers("raised", c.detecting(detected(t, "gpud", "10", event.FaultRaised, 10, nil)), http.StatusOK)
	expecttest.Has(t, "avoid", c.text("/v1/avoid"), `"detector":"gpud"`)
	events := get[api.List](c, "/v1/events?node=a&check=disk&severity=fatal&reason=DiskFails")
	last := api.LineOf(events.Events[len(events.Events)-1])
	want := [...]string{"prod", "a", "gpud", "disk DiskFails disk/sda", "fatal"}
	expecttest.Equal(t, "line", want, [...]string{last.Cluster, last.Node, last.Detector, last.Subject, last.Severity})
}

// Forbidden content from a detector is refused with the reason; other events of its own types are stored with the node.
func TestDetectorRefused(t *testing.T) {
	c := newCenter(t, nil)
	long := strings.Repeat("x", 5000)
	for _, test := range []struct {
		want string
		data map[string]any
	}{
		{"reason", map[string]any{"reason": ""}},
		{"severity", map[string]any{"severity": "bad"}},
		{"message has", map[string]any{"message": long}},
		{"facts", map[string]any{"facts": map[string]string{"a": long}}},
		{"ttlSeconds", map[string]any{"ttlSeconds": 1}},
		{"ttlSeconds", map[string]any{"ttlSeconds": int64(1) << 62}},
		{"ttlSeconds", map[string]any{"ttlSeconds": -3600}},
		{"detector", map[string]any{"detector": "bmc"}},
	} {
		e := detected(t, "gpud", "1", event.FaultRaised, 1, test.data)
		c.answers(test.want, c.detecting(e), 422, test.want)
	}
	for name, test := range map[string]struct {
		want   string
		change func(e *cloudevents.Event)
	}{
		"no time":       {"time must be set", func(e *cloudevents.Event) { e.SetTime(time.Time{}) }},
		"a stream":      {"for agents", func(e *cloudevents.Event) { e.SetExtension("stream", stream1) }},
		"snapshot":      {"a detector sends", func(e *cloudevents.Event) { e.SetType(string(event.NodeSnapshot)) }},
		"agent's name":  {"DETECTOR", func(e *cloudevents.Event) { e.SetSource("/clusters/prod/nodes/a") }},
		"two names":     {"DETECTOR", func(e *cloudevents.Event) { e.SetSource("/clusters/prod/nodes/a/b/c") }},
		"another place": {"DETECTOR", func(e *cloudevents.Event) { e.SetSource("urn:x") }},
		"center's type": {"center itself", func(e *cloudevents.Event) { e.SetType(string(event.NodeLost)) }},
	} {
		e := detected(t, "gpud", "1", event.FaultRaised, 1, nil)
		test.change(&e)
		c.answers(name, c.detecting(e), 422, test.want)
	}
	agents := raised("a", 1, "x", "fatal")
	f, _ := agents.Data.(event.Fault)
	f.Detector = "gpud"
	agents.Data = f
	c.answers("an agent speaks as a detector", c.sending(agents), 422)
	c.answers("its own type", c.detecting(detected(t, "gpud", "1", "com.example.temperature", 1, nil)), 200)
	var answer api.List
	if c.get("/v1/events?cluster=prod&node=a", &answer); len(answer.Events) != 1 || c.sources() != "" {
		t.Errorf("%v, faults %q", answer.Events, c.sources())
	}
}

// A detector sends under its own name, for its node or, if permitted, for every node of its cluster; a node's own
// identity may send for every detector on it.
func TestWhoMayDetect(t *testing.T) {
	for _, test := range []struct {
		who  web.Identity
		may  []string
		not  []string
		name string
	}{
		{web.Identity{Cluster: "c", Node: "a"}, []string{"a", "a/gpud", "a/bmc"}, []string{"b", "b/gpud", "a/gpud/x"}, "node"},
		{web.Identity{Cluster: "c", Node: "a", Detector: "gpud"}, []string{"a/gpud"}, []string{"a", "a/bmc", "b/gpud"}, "detector"},
		{web.Identity{Cluster: "c", Node: "a", Detector: "gpud", EveryNode: true}, []string{"a/gpud", "b/gpud"},
			[]string{"a", "b", "b/bmc"}, "every node"},
		{web.Identity{Cluster: "d", Node: "a", Detector: "gpud", EveryNode: true}, nil, []string{"a/gpud"}, "another cluster"},
		{web.Identity{Cluster: "c", Reads: true}, nil, []string{"a/gpud"}, "reader"},
	} {
		c := newCenter(t, by(&test.who))
		for status, tails := range map[int][]string{200: test.may, 403: test.not} {
			for _, tail := range tails {
				e := `{"specversion":"1.0","id":"1","source":"/clusters/c/nodes/` + tail + `","type":"com.example.x"}`
				c.answers(test.name+": "+tail, c.request(http.MethodPost, "/v1/events", single, e), status)
			}
		}
	}
}

// A person can comment on a detector's fault separately from the agent's.
func TestDetectorNotes(t *testing.T) {
	c := newCenter(t, nil)
	c.send(raised("a", 1, "sda", "fatal"))
	c.answers("raised", c.detecting(detected(t, "gpud", "1", event.FaultRaised, 1, nil)), http.StatusOK)
	faults, _ := c.Model.Faults(func(f model.NodeFault) bool { return f.Detector == "gpud" })
	e, err := model.OperatorEvent(event.OperatorAcknowledged, faults[0], event.Operator{By: "ada"}, time.Now())
	must(t, err)
	journaltest.Append(t, c.Journal, e)
	all, _ := c.Model.Faults(func(model.NodeFault) bool { return true })
	expecttest.Equal(t, "faults", 2, len(all))
	for _, f := range all {
		expecttest.Equal(t, "acknowledged by "+f.Detector, f.Detector == "gpud", f.Operator != nil)
		expecttest.Equal(t, "severity", finding.Fatal, f.Severity)
	}
}

// A detector for all nodes also speaks for its cluster, under its own name: of misses and levels, but not of faults, which are
// those of a node.
func TestDetectorOfACluster(t *testing.T) {
	missed := event.Missed{Reason: "CapacityExhausted", Minute: time.Unix(60, 0).UTC(), Count: 3, Examples: []event.MissedPod{{Name: "p"}}}
	state := event.SLO{Rule: "Health", Cluster: "c", Before: "Healthy", After: "Fatal", AsOf: time.Unix(60, 0).UTC()}
	everyNode := web.Identity{Cluster: "c", Node: "a", Detector: "trace", EveryNode: true}
	many := missed
	many.Examples = make([]event.MissedPod, event.MaxExamples+1)
	for name, test := range map[string]struct {
		who      web.Identity
		kind     event.Type
		detector string
		data     any
		want     int
	}{
		"misses":            {everyNode, event.PodMissed, "trace", missed, 200},
		"a level":           {everyNode, event.SLOState, "trace", state, 200},
		"another name":      {everyNode, event.SLOState, "other", state, 403},
		"the center's name": {web.Identity{Any: true}, event.SLOState, "eventcenter", state, 422},
		"another cluster":   {web.Identity{Cluster: "d", Node: "a", Detector: "trace", EveryNode: true}, event.SLOState, "trace", state, 403},
		"of one node":       {web.Identity{Cluster: "c", Node: "a", Detector: "trace"}, event.SLOState, "trace", state, 403},
		"an agent":          {web.Identity{Cluster: "c", Node: "a"}, event.SLOState, "trace", state, 403},
		"a fault":           {everyNode, event.FaultRaised, "trace", event.Fault{Check: "c", Reason: "R", Severity: finding.Fatal}, 422},
		"no count":          {everyNode, event.PodMissed, "trace", event.Missed{Reason: "R", Minute: missed.Minute}, 422},
		"too many examples": {everyNode, event.PodMissed, "trace", many, 422},
		"no rule":           {everyNode, event.SLOState, "trace", event.SLO{}, 422},
		"a long text":       {everyNode, event.SLOState, "trace", event.SLO{Rule: "R", Before: "Healthy", After: "Fatal", AsOf: state.AsOf, Message: strings.Repeat("x", 9000)}, 422},
	} {
		c := newCenter(t, by(&test.who))
		e, err := event.OfDetector(test.kind, "c", "", test.detector, "1", time.Unix(120, 0), test.data)
		must(t, err)
		c.answers(name, c.detecting(e), test.want)
		if nodes, _ := c.Model.Nodes(""); len(nodes) != 0 {
			t.Errorf("%s: it makes a node: %+v", name, nodes)
		}
	}
}

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
	all := get[api.List](c, "/v1/events")
	for i, sent := range []cloudevents.Event{e, text} {
		var got cloudevents.Event
		must(t, json.Unmarshal(all.Events[i].Event, &got))
		expecttest.Equal(t, "event", sent.String(), got.String())
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
	response = c.answers("no question", c.request(http.MethodOptions, "/v1/events", "", ""), 200)
	expecttest.Equal(t, "origin without a question", "", response.Header.Get("WebHook-Allowed-Origin"))
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
	expecttest.Has(t, "the list", text, `"data_base64":"/wA="`, `"data_base64":"6Q=="`, `"data":{"a":1e400}`, `"data":[1]`)
	_, err := event.ReadEnvelope([]byte(`{"specversion":"1.0","id":"1","source":"u","type":"t","data":` + text + `}`))
	must(t, err) // a strict parser
}
