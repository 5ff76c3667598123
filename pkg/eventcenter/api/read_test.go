package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

func TestEvents(t *testing.T) {
	c := newCenter(t, nil)
	for i := range uint64(4) {
		c.send(raised(fmt.Sprintf("n%d", i%2), i+1, "x", finding.Warning))
	}
	id := c.Journal.Bounds().Journal
	for _, test := range []struct {
		query string
		want  string
	}{
		{"", "1 2 3 4 next 4"},
		{"?after=2", "3 4 next 4"},
		{"?limit=3", "1 2 3 next 3"},
		{"?node=n0", "1 3 next 4"},
		{"?node=n0&node=n1&after=3&journal=" + id, "4 next 4"},
		{"?type=none", "next 4"},
		{"?severity=warning&check=disk&reason=DiskFails&cluster=prod&limit=1", "1 next 1"},
		{"?after=4", "next 4"},
		{"?after=x", "400"}, {"?after=-1", "400"}, {"?limit=0", "400"}, {"?limit=1001", "400"}, {"?nodes=a", "400"},
		{"?after=4&journal=other", "410"},
	} {
		r, body := c.do(c.request(http.MethodGet, "/v1/events"+test.query, "", ""))
		var answer api.List
		must(t, json.Unmarshal([]byte(body), &answer))
		got := fmt.Sprint(r.StatusCode)
		if r.StatusCode == 200 {
			got = ""
			for _, i := range answer.Events {
				got += fmt.Sprint(i.Offset, " ")
			}
			got += fmt.Sprint("next ", answer.Next)
		}
		expecttest.Equal(t, test.query, test.want, got)
	}
	r := c.request(http.MethodGet, "/v1/events?after=1", "", "")
	r.Header.Set("Last-Event-ID", "3")
	if _, body := c.do(r); !strings.Contains(body, `"events":[{"offset":"4"`) {
		t.Errorf("Last-Event-ID is to win over after: %s", body)
	}
}

// scripted is a journal with bounds and pages set by a test.
type scripted struct {
	mu      sync.Mutex // guards the fields below
	bounds  journal.Bounds
	records []journal.Record
	changed chan struct{}
}

func (s *scripted) set(oldest, newest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
	s.bounds = journal.Bounds{Journal: "j", Oldest: oldest, Newest: newest, Changed: s.changed}
	s.records = nil
	for offset := oldest; offset <= newest; offset++ {
		s.records = append(s.records, journal.Record{Offset: offset, Event: journal.Event{JSON: []byte("{}")}})
	}
}

func (s *scripted) Append(context.Context, []journal.Event) (journal.Appended, error) {
	return journal.Appended{}, nil
}

func (s *scripted) Bounds() journal.Bounds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bounds
}

func (s *scripted) Read(_ context.Context, q journal.Query) (journal.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.After > 0 && q.After+1 < s.bounds.Oldest {
		return journal.Page{}, &journal.TrimmedError{After: q.After, Oldest: s.bounds.Oldest}
	}
	page := journal.Page{Next: s.bounds.Newest}
	for _, r := range s.records {
		if r.Offset > q.After {
			page.Records = append(page.Records, r)
		}
	}
	return page, nil
}

// offline returns the interface for a scripted journal, without a listener.
func offline(t *testing.T, j *scripted, change ...func(*api.Config)) *api.Server {
	t.Helper()
	config := api.Config{Journal: j, Model: model.New(), Log: slog.New(slog.DiscardHandler),
		Authenticate: identitytest.Administrator(t, token)}
	for _, one := range change {
		one(&config)
	}
	return api.New(config)
}

func eventsRequest(ctx context.Context, query string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events"+query, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// A cursor before the oldest offset is answered with 410 and the oldest offset; if this replica is behind the cursor,
// it waits, then answers 503, never 410 or an empty page.
func TestCursorOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &scripted{}
		j.set(10, 20)
		s := offline(t, j)
		ask := func(query string, status int, texts ...string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, eventsRequest(t.Context(), query))
			expecttest.Equal(t, query, status, w.Code)
			expecttest.Has(t, query, w.Body.String(), texts...)
			return w
		}
		ask("?after=8", 410, `"after":"9"`, "older than what is kept")
		ask("?after=9", 200, `"offset":"10"`)
		if w := ask("?after=22", 503); w.Header().Get("Retry-After") == "" {
			t.Error("ahead: it does not say when to retry")
		}
		go func() {
			time.Sleep(2 * time.Second)
			j.set(10, 23)
		}()
		ask("?after=22", 200, `"offset":"23"`) // ahead, and then there
	})
}

// screen collects the text that a subscriber gets.
type screen struct {
	http.ResponseWriter
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) Flush() {}

func (s *screen) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}

// A stream sends new events, its position, signs of life, and the gaps that the subscriber has missed.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &scripted{}
		j.set(1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		r := eventsRequest(ctx, "")
		r.Header.Set("Accept", "text/event-stream")
		w := &screen{ResponseWriter: httptest.NewRecorder()}
		go offline(t, j).ServeHTTP(w, r)
		event := func(offset string) string {
			return "id: " + offset + `
data: {"offset":"` + offset + `","received":"0001-01-01T00:00:00Z","event":{}}

`
		}
		mark := func(offset string) string {
			return "id: " + offset + `
event: bookmark
data: {"journal":"j","offset":"` + offset + `"}

`
		}
		got := func(what, want string) {
			t.Helper()
			synctest.Wait()
			expecttest.Equal(t, what, want, w.take())
		}
		got("at first", mark("0")+event("1"))
		j.set(1, 2)
		got("one more", event("2"))
		time.Sleep(16 * time.Second)
		got("after 15 s", ": \n\n")
		time.Sleep(30 * time.Second)
		got("after 45 s", ": \n\n: \n\n")
		time.Sleep(18 * time.Second)
		expecttest.Has(t, "after a minute", w.take(), mark("2"))
		j.set(5, 6)
		got("behind what is kept", `id: 4
event: gap
data: {"from":"3","to":"4","reason":"older than what is kept","snapshot":"/v1/nodes"}

`+event("5")+event("6"))
		cancel()
		synctest.Wait()
	})
}

// The list names only fatal nodes, is the same text while the state is unchanged, and shows when it may be wrong.
func TestAvoid(t *testing.T) {
	now := time.Now()
	c := newCenter(t, func(config *api.Config) { config.Now = func() time.Time { return now } })
	for i := range uint64(10) {
		c.send(agentEvent(event.AgentStarted, fmt.Sprintf("n%d", i), 1))
	}
	c.send(raised("n1", 2, "x", finding.Fatal), raised("n2", 2, "x", finding.Warning))
	r, body := c.do(c.request(http.MethodGet, "/v1/avoid", "", ""))
	want := `{"pools":[{"cluster":"prod","nodes":10,"storm":false,"avoid":[{"node":"n1","reasons":[{"check":"disk",` +
		`"reason":"DiskFails","subject":"disk/x","since":"1970-01-01T00:00:09Z"}]}]}]}` + "\n"
	expecttest.Equal(t, "avoid", want, body)
	expecttest.Has(t, "Cache-Control", r.Header.Get("Cache-Control"), "max-age=")
	again := c.request(http.MethodGet, "/v1/avoid", "", "")
	again.Header.Set("If-None-Match", `"other", W/`+r.Header.Get("ETag"))
	if r, body := c.do(again); r.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("nothing has changed: %d %s", r.StatusCode, body)
	}
	again.Header = http.Header{"If-Match": {`"other"`}, "Range": {"bytes=3-4,9999999-"}, "If-None-Match": {`"other"`}}
	if r, body := c.do(again); r.StatusCode != http.StatusOK || body != want || r.Header.Get("Accept-Ranges") != "" {
		t.Errorf("a part or a condition that no client needs: %d %s %s", r.StatusCode, body, r.Header)
	}
	now = now.Add(time.Minute)
	c.send(raised("n3", 2, "x", finding.Fatal), raised("n4", 2, "x", finding.Fatal))
	avoid := get[api.Avoid](c, "/v1/avoid")
	if p := avoid.Pools[0]; !p.Storm || len(p.Avoid) != 3 || avoid.StaleSince != nil {
		t.Errorf("three of ten: %+v", avoid)
	}
	now = now.Add(4 * time.Minute)
	c.get("/v1/avoid", &avoid)
	if avoid.StaleSince == nil {
		t.Errorf("no agent was heard for minutes: %+v", avoid)
	}
}

// silent is a finding of the center itself about a node or a cluster.
func (c *center) silent(kind event.Type, node, reason string) {
	c.t.Helper()
	e, err := model.Own{Cluster: "prod", Node: node, ID: node + string(kind), Type: kind, Time: time.Unix(1, 0).UTC(),
		Data: event.Silence{Reason: reason, Message: "it is silent", Since: time.Unix(9, 0).UTC()}}.Event()
	must(c.t, err)
	journaltest.Append(c.t, c.Journal, e)
}

// Nodes can be selected by the center's findings about them and by their agents; a lost node is to be avoided, a blind
// one is not, and if many are lost the cause is elsewhere.
func TestSilent(t *testing.T) {
	now := time.Now()
	c := newCenter(t, func(config *api.Config) { config.Now = func() time.Time { return now } })
	pools := map[string]model.Meta{}
	for i := range 20 {
		name := fmt.Sprintf("n%02d", i)
		pools[name] = model.Meta{UID: name, Pool: []string{"x", "y"}[i/10], Zone: "z"}
		if i > 0 { // the first has no agent
			c.send(agentEvent(event.AgentStarted, name, 1))
		}
	}
	c.Model.Describe("prod", pools)
	c.silent(event.NodeBlind, "n00", "NoAgent")
	c.silent(event.NodeLost, "n01", "LeaseUnchanged")
	c.silent(event.ClusterSilent, "", "ManyNodesSilent")
	for query, want := range map[string]int{"": 20, "state=blind": 1, "state=lost": 1, "state=blind&state=lost": 2,
		"state=seen": 18, "pool=y": 10, "pool=y&state=lost": 0, "zone=z": 20, "version=1.2": 19, "notversion=1.2": 1,
		"blind=dns": 19, "blind=disk": 0, "cluster=prod": 20, "cluster=x": 0} {
		nodes := get[api.NodeList](c, "/v1/nodes?"+query)
		if len(nodes.Nodes) != want || len(nodes.SilentClusters) != 1 || nodes.SilentClusters[0].Cluster != "prod" {
			t.Errorf("%q: %d nodes, want %d; %+v", query, len(nodes.Nodes), want, nodes.SilentClusters)
		}
	}
	other := agentEvent(event.AgentStarted, "n07", 2)
	other.Data = event.Agent{Version: "1.3", Blind: []string{}}
	c.send(other)
	for query, want := range map[string]string{"agent=other-version": "n07", "agent=other-version&blind=dns": "",
		"agent=blind-checks&version=1.3": ""} {
		nodes := get[api.NodeList](c, "/v1/nodes?"+query)
		if got := fmt.Sprint(nodes.Nodes); len(nodes.Nodes) > 1 || (want != "") != (len(nodes.Nodes) == 1) ||
			!strings.Contains(got, want) || nodes.CommonVersions["prod"] != "1.2" {
			t.Errorf("%q: %s, most have %v", query, got, nodes.CommonVersions)
		}
	}
	for query, want := range map[string]string{"/v1/nodes?agent=foo": `agent "foo": want other-version,`,
		"/v1/nodes?state=lost&state=fatal": `state "fatal": want seen, blind, lost`,
		"/v1/faults?severity=bad":          `severity "bad": want fatal,`} {
		var refused struct{ Error string }
		expecttest.Equal(t, query, http.StatusBadRequest, c.get(query, &refused))
		expecttest.Has(t, query, refused.Error, want)
	}
	expecttest.Has(t, "metrics", c.text("/metrics"), `eventcenter_odd_agents{oddity="other-version"} 1`+"\n",
		`eventcenter_odd_agents{oddity="blind-checks"} 18`+"\n", `eventcenter_silent_nodes{state="blind"} 1`+"\n",
		`eventcenter_silent_nodes{state="lost"} 1`+"\n", "eventcenter_silent_clusters 1\n", "eventcenter_nodes 20\n")
	want := `{"pools":[{"cluster":"prod","pool":"x","nodes":10,"storm":false,"avoid":[{"node":"n01","reasons":[{"check":` +
		`"silence","reason":"LeaseUnchanged","subject":"node/n01","since":"1970-01-01T00:00:09Z"}]}]},` +
		`{"cluster":"prod","pool":"y","nodes":10,"storm":false,"avoid":[]}]}` + "\n"
	expecttest.Equal(t, "avoid", want, c.text("/v1/avoid"))
	now = now.Add(time.Minute)
	c.silent(event.NodeLost, "n02", "LeaseUnchanged")
	c.silent(event.NodeLost, "n03", "LeaseUnchanged")
	c.send(raised("n03", 2, "x", finding.Fatal))
	avoid := get[api.Avoid](c, "/v1/avoid")
	if p := avoid.Pools[0]; !p.Storm || len(p.Avoid) != 1 || p.Avoid[0].Node != "n03" || len(p.Avoid[0].Reasons) != 2 {
		t.Errorf("a storm of lost nodes: %+v", p)
	}
	c.silent(event.NodeSeen, "n01", "Heard")
	c.silent(event.ClusterSeen, "", "Heard")
	if nodes := get[api.NodeList](c, "/v1/nodes?state=lost"); len(nodes.Nodes) != 2 || len(nodes.SilentClusters) != 0 {
		t.Errorf("%+v", nodes)
	}
	for _, kind := range []event.Type{event.NodeLost, event.NodeRemoved, event.ClusterSilent} {
		e := raised("n05", 3, "x", finding.Fatal)
		e.Type = kind
		c.answers(string(kind)+" by a sender", c.sending(e), 422, "center itself")
	}
}

// The document has all routes and no others.
func TestOpenAPI(t *testing.T) {
	c := newCenter(t, nil)
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	c.get("/openapi.json", &document)
	var found []string
	for path, methods := range document.Paths {
		for method := range methods {
			found = append(found, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(found)
	expecttest.Equal(t, "routes", offline(t, &scripted{}).Routes(), found)
}
