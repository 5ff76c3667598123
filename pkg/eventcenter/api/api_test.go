package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

const (
	token   = "0123456789abcdef0123456789abcdef"
	stream1 = "01J9ZZZZZZZZZZZZZZZZZZZZZZ"
	batch   = "application/cloudevents-batch+json"
	single  = "application/cloudevents+json"
)

// center is a real center with a real listener.
type center struct {
	*eventcenter.Center
	t       *testing.T
	handler http.Handler
	url     string
	log     *bytes.Buffer
}

func newCenter(t *testing.T, change func(*api.Config)) *center {
	t.Helper()
	c := &center{t: t, log: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(c.log, nil))
	var err error
	if c.Center, err = eventcenter.Open(t.Context(), eventcenter.Options{Dir: t.TempDir(), Log: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	config := api.Config{Journal: c.Journal, Model: c.Model, Log: log, Loopback: true,
		Authenticate: identitytest.Administrator(t, token),
		Health:       func() journal.Health { return c.Journal.Health() }}
	if change != nil {
		change(&config)
	}
	c.handler = api.New(config)
	server := httptest.NewServer(c.handler)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// reply is a response without its body.
type reply struct {
	StatusCode int
	Header     http.Header
}

// asAgents asks for uncompressed responses, as agents do.
var asAgents = &http.Client{Transport: &http.Transport{DisableCompression: true}}

// do sends a request with the token and returns the response and its body.
func (c *center) do(r *http.Request) (reply, string) {
	c.t.Helper()
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := asAgents.Do(r)
	must(c.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(c.t, err)
	return reply{response.StatusCode, response.Header}, string(body)
}

func (c *center) request(method, path, media, body string) *http.Request {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	must(c.t, err)
	if media != "" {
		r.Header.Set("Content-Type", media)
	}
	return r
}

func (c *center) post(media, body string) (reply, string) {
	c.t.Helper()
	return c.do(c.request(http.MethodPost, "/v1/events", media, body))
}

// send posts events that must be accepted.
func (c *center) send(events ...event.Event) {
	c.t.Helper()
	if r, body := c.post(batch, encode(c.t, events...)); r.StatusCode != http.StatusOK {
		c.t.Fatalf("%d: %s", r.StatusCode, body)
	}
}

// get decodes a response and returns its status.
func (c *center) get(path string, answer any) int {
	c.t.Helper()
	r, body := c.do(c.request(http.MethodGet, path, "", ""))
	if err := json.Unmarshal([]byte(body), answer); err != nil {
		c.t.Fatalf("%s: %v: %s", path, err, body)
	}
	return r.StatusCode
}

// text returns the body of a response.
func (c *center) text(path string) string {
	c.t.Helper()
	_, body := c.do(c.request(http.MethodGet, path, "", ""))
	return body
}

// answers demands a status, and texts in the body. A refusal that ends by itself says when to retry.
func (c *center) answers(what string, r *http.Request, status int, texts ...string) reply {
	c.t.Helper()
	response, body := c.do(r)
	expecttest.Equal(c.t, what+": status", status, response.StatusCode)
	expecttest.Has(c.t, what, body, texts...)
	if retry := status == 408 || status == 429 || status == 503; retry != (response.Header.Get("Retry-After") != "") {
		c.t.Errorf("%s: Retry-After %q", what, response.Header.Get("Retry-After"))
	}
	return response
}

// sending is the request of agents' events.
func (c *center) sending(events ...event.Event) *http.Request {
	c.t.Helper()
	return c.request(http.MethodPost, "/v1/events", batch, encode(c.t, events...))
}

// stored demands the number of stored events.
func (c *center) stored(want uint64) {
	c.t.Helper()
	expecttest.Equal(c.t, "stored events", want, c.Journal.Bounds().Newest)
}

// by makes every sender and reader the same.
func by(who *web.Identity) func(*api.Config) {
	return func(config *api.Config) {
		config.Authenticate = func(*http.Request) (web.Identity, error) { return *who, nil }
	}
}

// get returns the decoded response.
func get[T any](c *center, path string) (answer T) {
	c.t.Helper()
	c.get(path, &answer)
	return answer
}

func encode(t *testing.T, events ...event.Event) string {
	t.Helper()
	var texts []string
	for _, e := range events {
		text, err := e.Encode()
		must(t, err)
		texts = append(texts, string(text))
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// raised is a fault of a node with a named subject.
func raised(node string, sequence uint64, name string, severity finding.Severity) event.Event {
	f := event.Fault{ID: "x", Check: "disk", Subject: finding.Subject{Kind: "disk", Name: name}, Severity: severity,
		Reason: "DiskFails", Message: "it fails", RaisedAt: time.Unix(9, 0).UTC()}
	return event.Event{Type: event.FaultRaised, Cluster: "prod", Node: node, Time: time.Unix(10, 0).UTC(),
		Severity: severity, Stream: stream1, Sequence: sequence, Data: f,
		Subject: event.Subject{Check: f.Check, Reason: f.Reason, Kind: "disk", Name: name}}
}

func agentEvent(t event.Type, node string, sequence uint64) event.Event {
	return event.Event{Type: t, Cluster: "prod", Node: node, Time: time.Unix(10, 0).UTC(), Severity: finding.Info,
		Stream: stream1, Sequence: sequence, Data: event.Agent{Version: "1.2", Blind: []string{"dns"}}}
}

func TestIntake(t *testing.T) {
	c := newCenter(t, nil)
	body := encode(t, raised("a", 2, "sdb", "fatal"), raised("a", 1, "sda", "warning"),
		agentEvent(event.AgentAlive, "a", 3))
	for i, want := range []string{`{"offset":"2","stored":2,"duplicates":0,"conflicts":0}`,
		`{"offset":"2","stored":0,"duplicates":2,"conflicts":0}`} {
		r := c.answers(fmt.Sprint("time ", i), c.request(http.MethodPost, "/v1/events", batch, body), 200, want)
		seconds, err := strconv.Atoi(r.Header.Get("Nodeagent-Alive-Seconds"))
		if err != nil || seconds < 54 || seconds > 66 {
			t.Errorf("Nodeagent-Alive-Seconds: %q", r.Header.Get("Nodeagent-Alive-Seconds"))
		}
	}
	other := strings.Replace(encode(t, raised("a", 2, "sdb", "fatal")), "it fails", "it is fine", 1)
	_, answer := c.post(batch, other)
	expecttest.Has(t, "the same ID with other content", answer, `"duplicates":1,"conflicts":1`)
	all := get[api.List](c, "/v1/events")
	if len(all.Events) != 2 || !strings.Contains(string(all.Events[1].Event), "it fails") ||
		!strings.Contains(string(all.Events[0].Event), "sda") {
		t.Errorf("want the two in the order of their sequences, the first of the same ID: %v", all.Events)
	}
	nodes := get[api.NodeList](c, "/v1/nodes")
	if n := nodes.Nodes; len(n) != 1 || n[0].Fatal != 1 || n[0].Warning != 1 || n[0].Version != "1.2" ||
		nodes.Offset != 2 {
		t.Errorf("%+v", nodes)
	}
}

// An invalid batch is refused, the answer names each invalid event and its error, and no event of the batch is stored.
func TestRefused(t *testing.T) {
	c := newCenter(t, nil)
	good := strings.Trim(encode(t, raised("a", 1, "sda", "fatal")), "[]")
	foreign := func(change string) string {
		e := map[string]any{"specversion": "1.0", "id": "1", "source": "urn:x", "type": "com.example.x"}
		must(t, json.Unmarshal([]byte(change), &e))
		text, _ := json.Marshal(e)
		return string(text)
	}
	severe := strings.Replace(good, `"severity":"fatal","stream"`, `"severity":"bad","stream"`, 1)
	unchecked := strings.Replace(good, `"check":"disk"`, `"check":""`, 1)
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for _, test := range []struct {
		name, media, body string
		status            int
		want              string
	}{
		{"no media type", "", good, 415, "want application/cloudevents-batch+json"},
		{"another media type", "application/json", good, 415, "want"},
		{"another charset", single + "; charset=latin1", good, 415, "utf-8"},
		{"no JSON", single, "{", 400, `"index":0`},
		{"a batch that is none", batch, good, 400, "no JSON array"},
		{"cut off", batch, "[" + good, 400, "no JSON array"},
		{"another version", single, foreign(`{"specversion":"0.3"}`), 400, "specversion"},
		{"no id", single, foreign(`{"id":""}`), 400, "id"},
		{"null", batch, "[null]", 400, `"index":0`},
		{"deep", single, foreign(`{"data":` + deep + `}`), 400, "nested"},
		{"control characters", single, foreign(`{"subject":"a\nb"}`), 400, "subject has control characters"},
		{"a control character in an extension", single, foreign(`{"severity":"\u0000"}`), 400, "control characters"},
		{"a long attribute", single, foreign(`{"id":"` + strings.Repeat("x", 3000) + `"}`), 400, "3000 bytes"},
		{"a large event", single, foreign(`{"data":"` + strings.Repeat("x", 70000) + `"}`), 422, "are possible"},
		{"a source of the center", single, foreign(`{"source":"/clusters/prod/eventcenter"}`), 422, "the center's own"},
		{"our type from elsewhere", single, foreign(`{"type":"io.github.nodeagent.fault.raised.v1"}`), 422,
			"want /clusters/CLUSTER/nodes/NODE/DETECTOR"},
		{"a type of the center", single, strings.ReplaceAll(good, "fault.raised.v1", "node.lost.v1"), 422,
			"for the center itself"},
		{"one of two", batch, "[" + good + "," + severe + "]", 422,
			`"index":1,"id":"01J9ZZZZZZZZZZZZZZZZZZZZZZ-00000000000000000001"`},
		{"data without its check", single, unchecked, 422, "check"},
		{"both kinds of refusal", batch, "[{}," + unchecked + "]", 400, `"index":1`},
		{"too large", batch, strings.Repeat(" ", 9<<20), 413, "bytes are possible"},
		{"too many", batch, "[" + strings.Repeat("{},", 1000) + "{}]", 413, "1001 events"},
	} {
		r, answer := c.post(test.media, test.body)
		if r.StatusCode != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s: %d %.300s; want %d and %q", test.name, r.StatusCode, answer, test.status, test.want)
		}
		if r.Header.Get("Content-Type") != "application/json" || !json.Valid([]byte(answer)) || len(answer) > 100_000 {
			t.Errorf("%s: %s %.100s", test.name, r.Header.Get("Content-Type"), answer)
		}
	}
	r := c.request(http.MethodPost, "/v1/events", single, good)
	r.Header.Set("Content-Encoding", "gzip")
	c.answers("compressed", r, 415)
	c.stored(0)
	if c.log.Len() > 0 {
		t.Errorf("the log repeats what a sender said: %s", c.log)
	}
}

// Text that looks like HTML, SQL, a path or a terminal sequence is data: it comes back unchanged.
func TestHostileText(t *testing.T) {
	c := newCenter(t, nil)
	for i, text := range []string{`<script>alert(1)</script>`, `'; DROP TABLE events; --`, "../../etc/passwd",
		"\x1b[2J\r\nlevel=ERROR", strings.Repeat("ü", 2000), "\u202eevil", "%s%n{{.}}"} {
		e := raised("a", uint64(i+1), "x", finding.Warning)
		f := e.Data.(event.Fault)
		f.Message, f.Facts = text, map[string]string{text: text}
		e.Data = f
		c.send(e)
		faults := get[api.FaultList](c, "/v1/faults")
		if len(faults.Faults) != 1 || faults.Faults[0].Message != text || faults.Faults[0].Facts[text] != text {
			t.Errorf("%q came back as %+v", text, faults.Faults)
		}
	}
	e := raised("../<b>/%2e", 1, "y", finding.Fatal)
	c.send(e)
	var node api.NodeAnswer
	if status := c.get("/v1/nodes/prod/..%2F%3Cb%3E%2F%252e", &node); status != 200 || len(node.Events) != 1 {
		t.Errorf("%d %+v", status, node)
	}
	if c.log.Len() > 0 {
		t.Errorf("the log repeats what a sender said: %s", c.log)
	}
	r, body := c.do(c.request(http.MethodGet, "/metrics", "", ""))
	if strings.Contains(body, "prod") || r.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("metrics with a name that a sender chose: %s", body)
	}
}

// Senders that send too much are asked to retry; their events are not stored.
func TestRates(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Limits = api.Limits{SourceRate: 0.001, SourceBurst: 2, Rate: 0.001, Burst: 5}
	})
	c.send(raised("a", 1, "x", "fatal"), raised("a", 2, "x", "fatal"))
	c.answers("one source", c.sending(raised("a", 3, "x", "fatal"), raised("b", 1, "x", "fatal")), 429)
	c.answers("others", c.sending(raised("c", 1, "x", "fatal"), raised("d", 1, "x", "fatal")), 200)
	c.answers("all together", c.sending(raised("e", 1, "x", "fatal"), raised("f", 1, "x", "fatal")), 503)
	c.stored(4)
}

// appending is a journal with another Append.
type appending struct {
	journal.Journal
	append func(context.Context, []journal.Event) (journal.Appended, error)
}

func (j *appending) Append(ctx context.Context, events []journal.Event) (journal.Appended, error) {
	return j.append(ctx, events)
}

func TestFull(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Journal = &appending{config.Journal, func(context.Context, []journal.Event) (journal.Appended, error) {
			return journal.Appended{}, fmt.Errorf("%w: no space", journal.ErrFull)
		}}
	})
	c.answers("a full disk", c.sending(raised("a", 1, "x", "fatal")), 503, "disk is full")
	c.answers("reading", c.request(http.MethodGet, "/v1/events", "", ""), 200)
}

// A node's clock may be wrong: its events are accepted and counted.
func TestFuture(t *testing.T) {
	c := newCenter(t, nil)
	e := raised("a", 1, "x", "fatal")
	e.Time = time.Now().Add(100 * 365 * 24 * time.Hour).UTC()
	c.send(e)
	expecttest.Has(t, "metrics", c.text("/metrics"), "future_events_total 1\n", `events_total{result="stored"} 1`)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
