package pages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

// A fault, its end and the agent's actions are visible on the pages, from the fleet to the node.
func TestPages(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.wants(c.page("/"), "No agent has sent anything yet")
	for i := range 3 {
		c.send(fmt.Sprint("node-", i), event.AgentAlive, event.Agent{Version: "1.2", Blind: []string{"dns"}})
	}
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	c.wants(c.page("/"), `<a href="/nodes/prod/node-0">node-0</a>`)
	c.send("node-1", event.FaultRaised, c.fault("node-1", "/data"))
	c.wants(c.page("/"), "3 nodes", ">FilesystemReadonly</a>", `<td class="n">2</td>`, "1 h 0 min", "33.3 %")
	c.wants(c.page("/faults?check=filesystem-readonly"), "FilesystemReadonly")
	c.wants(c.page("/faults?check=dns"), "No active fault is like this")
	c.wants(c.page("/faults/filesystem-readonly?reason=FilesystemReadonly"), "node-0</a>", "node-1</a>", "on 2 nodes")
	c.wants(c.page("/nodes/prod/node-0"), "/data takes no writes", "fault.raised.v1", "It cannot tell: dns", ">fatal</span>")
	c.wants(c.page("/agents?state=healthy"), "node-2</a>", "1.2")
	c.send("node-2", event.AgentAlive, event.Agent{Version: "1.1"})
	odd := c.page("/agents?agent=other-version")
	c.wants(odd, "node-2</a>", "most have 1.2")
	expecttest.Lacks(t, "an agent like most is odd", odd, "node-0</a>")
	expecttest.Lacks(t, "an agent that can tell is blind", c.page("/agents?agent=blind-checks"), "node-2</a>")
	c.wants(c.page("/reports/daily"), "In short", "FilesystemReadonly", `href="/events?after=0&amp;`, "Partial")
	c.wants(c.page("/reports/weekly?date="+c.now.UTC().Format(time.DateOnly)), "Week ", "Partial")
	c.wants(c.page("/reports/daily"), `type="date" value="`+c.now.UTC().Format(time.DateOnly)+`"`)
	for path, want := range map[string]int{"/reports/daily?date=2001-01-01": http.StatusNotFound,
		"/reports/daily?date=x": http.StatusBadRequest, "/reports/monthly": http.StatusNotFound} {
		c.answers(path, want, path, nil)
	}
	form := formOf(c.page("/nodes/prod/node-0"))
	declare := func(node, length string, want int) {
		t.Helper()
		c.answers("maintenance for "+length, want, "/maintenance",
			url.Values{"form": {form}, "cluster": {"prod"}, "node": {node}, "for": {length}})
	}
	declare("node-0", "4h", http.StatusSeeOther)
	c.wants(c.page("/nodes/prod/node-0"), "operator.maintenance.v1", "In maintenance until <time")
	c.wants(c.page("/agents"), "maintenance until ")
	declare("node-0", "0s", http.StatusSeeOther)
	for _, path := range []string{"/nodes/prod/node-0", "/agents"} {
		expecttest.Lacks(t, "a maintenance that is over", c.page(path), "aintenance until")
	}
	declare("nobody", "4h", http.StatusBadRequest)
	declare("node-0", "-1h", http.StatusBadRequest)
	declare("node-0", "9999h", http.StatusBadRequest)
	c.wants(c.page("/events?node=node-1"), "fault.raised.v1", "node-1</a>")
	c.send("node-0", event.FaultCleared, c.fault("node-0", "/data"))
	c.wants(c.page("/nodes/prod/node-0"), "Nothing that its agent knows of", "fault.cleared.v1", ">healthy</span>")
	leftover := event.Activity{Check: "leftovers", Kind: finding.LeftoverFound, Message: "nobody knows its pod",
		Subject: finding.Subject{Kind: "cgroup", Name: "/kubepods/x"}, Pod: finding.Subject{Kind: "pod", Name: "shop/cart"},
		FoundAt: c.now.Add(-time.Hour)}
	c.send("node-2", event.LeftoverFound, leftover)
	c.wants(c.page("/leftovers"), "cgroup", "node-2</a> 1")
	c.wants(c.page("/nodes/prod/node-2"), "shop/cart", "nobody knows its pod")
	c.now = time.Now().Add(3 * time.Minute) // the machine's clock recorded the agents' last events
	c.wants(c.page("/agents"), ">blind</span>")
	c.wants(c.page("/assets/style.css"), "color-scheme")
	for path, want := range map[string]string{"/events?foo=1": "unknown parameter &#34;foo&#34;", "/?foo=1": "foo",
		"/agents?agent=foo": "agent &#34;foo&#34;: want", "/agents?state=seen": "want lost, fatal, blind",
		"/faults?severity=bad": "severity &#34;bad&#34;", "/reports/daily?foo=1": "foo"} {
		answer, text := c.do(path, nil)
		expecttest.Equal(t, path, http.StatusBadRequest, answer.status)
		c.wants(text, want)
	}
	c.answers("an unknown node", http.StatusNotFound, "/nodes/prod/nobody", nil)
	for _, path := range []string{"/v1/nodes", "/v1/faults?check=filesystem-readonly"} { // the data behind them
		if !json.Valid([]byte(c.page(path))) {
			t.Errorf("%s is no JSON", path)
		}
	}
}

// Pages and data call a node by the same state: one without an agent is not blind, a silent agent's is.
func TestOneState(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.send("agent", event.AgentAlive, event.Agent{Version: "1.2"})
	c.detect("none", "gpud", "FilesystemSlow", "/data")
	c.now = c.now.Add(10 * time.Minute)
	page := c.page("/nodes/prod/none")
	c.wants(page, `>degraded</span>`, "Its agent was never heard")
	expecttest.Lacks(t, "an agentless node", page, "never ago", "blind")
	c.wants(c.page("/nodes/prod/agent"), `>blind</span>`)
	for state, want := range map[string]string{"seen": "none", "blind": "agent"} {
		var list api.NodeList
		must(t, json.Unmarshal([]byte(c.page("/v1/nodes?state="+state)), &list))
		if len(list.Nodes) != 1 || list.Nodes[0].Node != want || list.Nodes[0].State != state {
			t.Errorf("%s: %+v", state, list.Nodes)
		}
	}
	must(t, c.Close())
	c.open() // an agent may be waiting for its next attempt
	c.now = c.now.Add(-6 * time.Minute)
	expecttest.Lacks(t, "after the center's start", c.page("/nodes/prod/agent"), ">blind</span>")
}

// Without a code no page is visible, and a code works once, for a limited time.
func TestSigningIn(t *testing.T) {
	c := newCenter(t)
	c.send("node-0", event.AgentAlive, event.Agent{})
	for _, path := range []string{"/", "/faults", "/faults/x", "/nodes/prod/node-0", "/leftovers", "/agents", "/events"} {
		answer, text := c.do(path, nil)
		expecttest.Equal(t, path, http.StatusSeeOther, answer.status)
		expecttest.Equal(t, path, "/login?next="+url.QueryEscape(path), answer.header.Get("Location"))
		expecttest.Lacks(t, path, text, "<td")
	}
	c.answers("nodes", http.StatusUnauthorized, "/v1/nodes", nil)
	c.answers("events", http.StatusUnauthorized, "/v1/events", nil)
	enter := func(what, code string, want int) answer {
		t.Helper()
		c.now = c.now.Add(time.Second) // the limit of attempts is per second
		return c.answers(what, want, "/login", url.Values{"code": {code}, "next": {"//evil.example/"}})
	}
	code := c.code("ada", true)
	enter("a guessed code", "aaaa-bbbb-cccc", http.StatusForbidden)
	answer := enter("a code", " "+strings.ToUpper(code), http.StatusSeeOther)
	expecttest.Equal(t, "Location", "/", answer.header.Get("Location"))
	expecttest.Has(t, "cookie", answer.header.Get("Set-Cookie"), "HttpOnly; SameSite=Strict")
	c.wants(c.page("/"), "1 node.", "ada")
	enter("a used code", code, http.StatusForbidden)
	old := c.code("bob", true)
	c.now = c.now.Add(10 * time.Minute)
	enter("an old code", old, http.StatusForbidden)
	c.now = c.now.Add(12 * time.Hour)
	c.answers("an old session", http.StatusSeeOther, "/", nil)
	c.signIn()
	c.answers("a person sends events", http.StatusUnauthorized, "/v1/events", url.Values{})
	c.do("/logout", url.Values{"form": {formOf(c.page("/agents"))}})
	c.answers("signed out", http.StatusSeeOther, "/", nil)
}

var formToken = regexp.MustCompile(`name="form" value="([A-Z2-7]+)"`)

func formOf(page string) string {
	if found := formToken.FindStringSubmatch(page); found != nil {
		return found[1]
	}
	return ""
}

// While the store cannot be read, no one is told that they are not signed in.
func TestSessionsUnknown(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	must(t, c.control.Close())
	c.answers("a page", http.StatusServiceUnavailable, "/faults", nil)
	c.answers("data", http.StatusServiceUnavailable, "/v1/nodes", nil)
}

// A person's note on a fault is an event, is shown, and survives a restart of the center.
func TestSaying(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	c.send("node-1", event.FaultRaised, c.fault("node-1", "/data"))
	form := formOf(c.page("/"))
	say := func(want int, what string, more ...string) {
		t.Helper()
		values := url.Values{"form": {form}, "what": {what}, "check": {"filesystem-readonly"}, "next": {"/faults"}}
		for i := 0; i+1 < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		c.answers(fmt.Sprint(what, more), want, "/say", values)
	}
	say(http.StatusSeeOther, "acknowledge", "node", "node-0", "text", "disk <b>ordered</b>")
	c.wants(c.page("/nodes/prod/node-0"), "taken over by ada", "disk &lt;b&gt;ordered&lt;/b&gt;",
		"operator.acknowledged.v1")
	expecttest.Lacks(t, "that of another node", c.page("/nodes/prod/node-1"), "taken over")
	c.wants(c.page("/faults"), "1 of 2 taken over")
	say(http.StatusSeeOther, "mute", "for", "4h")
	c.wants(c.page("/faults"), `class="muted"`)
	c.now = c.now.Add(5 * time.Hour)
	expecttest.Lacks(t, "muted beyond its time", c.page("/faults"), `class="muted"`)
	say(http.StatusBadRequest, "mute", "for", "later")
	say(http.StatusBadRequest, "mute", "for", "10000h")
	say(http.StatusConflict, "acknowledge", "node", "nobody")
	say(http.StatusForbidden, "acknowledge", "form", "AAAA")
	records, err := c.Journal.Read(t.Context(), journal.Query{Limit: 100})
	must(t, err)
	for _, r := range records.Records {
		must(t, schematest.Problem(r.JSON))
	}
	node := func() model.Detail {
		d, _, _ := c.Model.Node(model.Key{Cluster: "prod", Node: "node-0"})
		d.LastSeen = time.Time{}
		return d
	}
	before := node()
	must(t, c.Close())
	c.open()
	expecttest.Equal(t, "after a restart", before, node())
	expecttest.Equal(t, "taken over", "ada", node().Faults[0].Operator.AcknowledgedBy)
	// A recurring fault is a new one: it is not taken over.
	c.send("node-0", event.FaultCleared, c.fault("node-0", "/data"))
	c.now = c.now.Add(time.Hour)
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	if o := node().Faults[0].Operator; o != nil && o.AcknowledgedBy != "" {
		t.Error("a fault that came again is taken over already")
	}
}

// The form of one fault acts on that fault alone: an agent's leaves that of a second witness, and the other way round.
func TestFormOfOneFault(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	for _, detector := range []string{"", "gpud"} {
		c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
		c.detect("node-0", "gpud", "FilesystemSlow", "/data")
		page := c.page("/nodes/prod/node-0")
		for form := range strings.SplitSeq(page, `action="/say"`) {
			values := url.Values{"for": {"4h"}}
			for _, field := range regexp.MustCompile(`name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
				values.Set(field[1], field[2])
			}
			if values.Has("check") && values.Get("detector") == detector {
				values.Set("what", "mute")
				c.answers("mute", http.StatusSeeOther, "/say", values)
			}
		}
		faults, _ := c.Model.Faults(func(f model.NodeFault) bool { return f.Operator.Muted(c.now) })
		expecttest.Equal(t, "muted", 1, len(faults))
		expecttest.Equal(t, "whose", detector, faults[0].Detector)
		c.now = c.now.Add(5 * time.Hour)
	}
}

// Another site cannot act in a signed-in person's name.
func TestOtherSites(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	form := url.Values{"form": {formOf(c.page("/"))}, "what": {"acknowledge"}, "check": {"filesystem-readonly"}}
	for _, headers := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		c.answers(headers[0], http.StatusForbidden, "/say", form, headers...)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/", nil)
	w := httptest.NewRecorder()
	api.New(api.Config{Journal: c.Journal, Model: c.Model, Loopback: true, Authenticate: identitytest.Administrator(t, "x"),
		Pages: func(*api.Server) http.Handler { return http.NotFoundHandler() }}).ServeHTTP(w, r)
	expecttest.Equal(t, "under the name of another site", http.StatusMisdirectedRequest, w.Code)
	policy := c.answers("a page", http.StatusOK, "/", nil).header.Get("Content-Security-Policy")
	expecttest.Equal(t, "policy", web.Policy, policy)
	expecttest.Lacks(t, "policy", policy, "unsafe")
}

// Agents' text stays text on every page.
func TestHostilePages(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	const script = `<script>alert(1)</script>`
	f := c.fault("node", script)
	f.Message, f.Reason, f.Check = script+"\u202e", `R"'<i>`, `c/../"<b>`
	f.Facts = map[string]string{script: script}
	c.send(`n"'<b>&`, event.FaultRaised, f)
	c.send("node", event.AgentAlive, event.Agent{Version: script, Configuration: script, Blind: []string{script}})
	links := regexp.MustCompile(`href="(/[^"]*)"`)
	seen, waiting := map[string]bool{}, []string{"/"}
	for len(waiting) > 0 {
		path := waiting[0]
		waiting = waiting[1:]
		if seen[path] || strings.HasPrefix(path, "/assets/") || strings.HasPrefix(path, "/v1/") {
			continue
		}
		seen[path] = true
		page := c.page(path)
		expecttest.Lacks(t, path, page, script, "<b>", "<i>", "\u202e")
		for _, link := range links.FindAllStringSubmatch(page, -1) {
			waiting = append(waiting, strings.ReplaceAll(link[1], "&amp;", "&"))
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d pages were reached: %v", len(seen), seen)
	}
}

// A reader sees no forms and can change no state; a session from before operators existed is a reader's too.
func TestReaderChangesNothing(t *testing.T) {
	c := newCenter(t)
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	for _, operator := range []bool{false, true} {
		c.do("/login", url.Values{"code": {c.code("ada", operator)}})
		form := formOf(c.page("/"))
		for _, page := range []string{"/nodes/prod/node-0", "/faults/filesystem-readonly"} {
			expecttest.Equal(t, page+" has a form", operator, strings.Contains(c.page(page), `<form class="say"`))
		}
		want := map[bool]int{false: http.StatusForbidden, true: http.StatusSeeOther}[operator]
		for path, values := range map[string]url.Values{
			"/say":         {"what": {"mute"}, "for": {"1h"}, "check": {"filesystem-readonly"}},
			"/maintenance": {"cluster": {"prod"}, "node": {"node-0"}, "for": {"1h"}},
		} {
			before := c.Journal.Bounds().Newest
			values.Set("form", form)
			c.answers(path, want, path, values)
			expecttest.Equal(t, path+" stores an event", operator, c.Journal.Bounds().Newest > before)
		}
	}
}
