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

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
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
	if strings.Contains(odd, "node-0</a>") || strings.Contains(c.page("/agents?agent=blind-checks"), "node-2</a>") {
		t.Error("an agent like most is odd")
	}
	c.wants(c.page("/reports/daily"), "In short", "FilesystemReadonly", `href="/events?after=0&amp;`, "Partial")
	c.wants(c.page("/reports/weekly?date="+c.now.UTC().Format(time.DateOnly)), "Week ", "Partial")
	c.wants(c.page("/reports/daily"), `type="date" value="`+c.now.UTC().Format(time.DateOnly)+`"`)
	for path, want := range map[string]int{"/reports/daily?date=2001-01-01": http.StatusNotFound,
		"/reports/daily?date=x": http.StatusBadRequest, "/reports/monthly": http.StatusNotFound} {
		if answer, _ := c.do(path, nil); answer.status != want {
			t.Errorf("%s: %d", path, answer.status)
		}
	}
	form := formOf(c.page("/nodes/prod/node-0"))
	declare := func(values url.Values) int {
		values.Set("form", form)
		answer, _ := c.do("/maintenance", values)
		return answer.status
	}
	if status := declare(url.Values{"cluster": {"prod"}, "node": {"node-0"}, "for": {"4h"}}); status != http.StatusSeeOther {
		t.Error(status)
	}
	c.wants(c.page("/nodes/prod/node-0"), "operator.maintenance.v1")
	for _, bad := range []url.Values{{"cluster": {"prod"}, "node": {"nobody"}, "for": {"4h"}},
		{"cluster": {"prod"}, "node": {"node-0"}, "for": {"-1h"}}, {"cluster": {"prod"}, "node": {"node-0"}, "for": {"9999h"}}} {
		if status := declare(bad); status != http.StatusBadRequest {
			t.Errorf("%v: %d", bad, status)
		}
	}
	c.wants(c.page("/events?node=node-1"), "fault.raised.v1", "node-1</a>")
	c.send("node-0", event.FaultCleared, c.fault("node-0", "/data"))
	page := c.page("/nodes/prod/node-0")
	c.wants(page, "Nothing that its agent knows of", "fault.cleared.v1", ">healthy</span>")
	leftover := event.Activity{Check: "leftovers", Kind: finding.LeftoverFound, Message: "nobody knows its pod",
		Subject: finding.Subject{Kind: "cgroup", Name: "/kubepods/x"}, Pod: finding.Subject{Kind: "pod", Name: "shop/cart"},
		FoundAt: c.now.Add(-time.Hour)}
	c.send("node-2", event.LeftoverFound, leftover)
	c.wants(c.page("/leftovers"), "cgroup", "node-2</a> 1")
	c.wants(c.page("/nodes/prod/node-2"), "shop/cart", "nobody knows its pod")
	c.now = time.Now().Add(3 * time.Minute) // the machine's clock recorded the agents' last events
	c.wants(c.page("/agents"), ">blind</span>")
	c.wants(c.page("/assets/style.css"), "color-scheme")
	if answer, _ := c.do("/nodes/prod/nobody", nil); answer.status != http.StatusNotFound {
		t.Error(answer.status)
	}
	for _, path := range []string{"/v1/nodes", "/v1/faults?check=filesystem-readonly"} { // the data behind them
		if !json.Valid([]byte(c.page(path))) {
			t.Errorf("%s is no JSON", path)
		}
	}
}

// Without a code no page is visible, and a code works once, for a limited time.
func TestSigningIn(t *testing.T) {
	c := newCenter(t)
	c.send("node-0", event.AgentAlive, event.Agent{})
	for _, path := range []string{"/", "/faults", "/faults/x", "/nodes/prod/node-0", "/leftovers", "/agents", "/events"} {
		answer, text := c.do(path, nil)
		if answer.status != http.StatusSeeOther || answer.header.Get("Location") != "/login?next="+
			url.QueryEscape(path) || strings.Contains(text, "<td") {
			t.Errorf("%s: %d to %q", path, answer.status, answer.header.Get("Location"))
		}
	}
	for _, path := range []string{"/v1/nodes", "/v1/events"} {
		if answer, _ := c.do(path, nil); answer.status != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, answer.status)
		}
	}
	code, _, err := c.sessions.Code(t.Context(), web.Person{Name: "ada", Operator: true})
	must(t, err)
	enter := func(code string) (answer, string) {
		c.now = c.now.Add(time.Second) // the limit of attempts is per second
		return c.do("/login", url.Values{"code": {code}, "next": {"//evil.example/"}})
	}
	if answer, _ := enter("aaaa-bbbb-cccc"); answer.status != http.StatusForbidden {
		t.Error("a code that was guessed opens the pages")
	}
	answer, _ := enter(" " + strings.ToUpper(code))
	if answer.status != http.StatusSeeOther || answer.header.Get("Location") != "/" {
		t.Errorf("%d to %q", answer.status, answer.header.Get("Location"))
	}
	if cookie := answer.header.Get("Set-Cookie"); !strings.Contains(cookie, "HttpOnly; SameSite=Strict") {
		t.Errorf("cookie %q", cookie)
	}
	c.wants(c.page("/"), "1 node.", "ada")
	if answer, _ := enter(code); answer.status != http.StatusForbidden {
		t.Error("a code opens the pages twice")
	}
	old, _, err := c.sessions.Code(t.Context(), web.Person{Name: "bob", Operator: true})
	must(t, err)
	c.now = c.now.Add(10 * time.Minute)
	if answer, _ := enter(old); answer.status != http.StatusForbidden {
		t.Error("a code opens the pages after its end")
	}
	c.now = c.now.Add(12 * time.Hour)
	if answer, _ := c.do("/", nil); answer.status != http.StatusSeeOther {
		t.Error("a session has no end")
	}
	c.signIn()
	if answer, _ := c.do("/v1/events", url.Values{}); answer.status != http.StatusUnauthorized {
		t.Errorf("who is signed in sends events: %d", answer.status)
	}
	_, text := c.do("/agents", nil)
	c.do("/logout", url.Values{"form": {formOf(text)}})
	if answer, _ := c.do("/", nil); answer.status != http.StatusSeeOther {
		t.Error("signed out, and still in")
	}
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
	for _, path := range []string{"/faults", "/v1/nodes"} {
		if answer, _ := c.do(path, nil); answer.status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", path, answer.status)
		}
	}
}

// A person's note on a fault is an event, is shown, and survives a restart of the center.
func TestSaying(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	c.send("node-1", event.FaultRaised, c.fault("node-1", "/data"))
	form := formOf(c.page("/"))
	say := func(what string, more ...string) int {
		t.Helper()
		values := url.Values{"form": {form}, "what": {what}, "check": {"filesystem-readonly"}, "next": {"/faults"}}
		for i := 0; i+1 < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		answer, _ := c.do("/say", values)
		return answer.status
	}
	if status := say("acknowledge", "node", "node-0", "text", "disk <b>ordered</b>"); status != http.StatusSeeOther {
		t.Fatal(status)
	}
	page := c.page("/nodes/prod/node-0")
	c.wants(page, "taken over by ada", "disk &lt;b&gt;ordered&lt;/b&gt;", "operator.acknowledged.v1")
	if strings.Contains(c.page("/nodes/prod/node-1"), "taken over") {
		t.Error("that of another node is taken over too")
	}
	c.wants(c.page("/faults"), "1 of 2 taken over")
	if status := say("mute", "for", "4h"); status != http.StatusSeeOther {
		t.Fatal(status)
	}
	c.wants(c.page("/faults"), `class="muted"`)
	c.now = c.now.Add(5 * time.Hour)
	if strings.Contains(c.page("/faults"), `class="muted"`) {
		t.Error("it is muted beyond its time")
	}
	for status, form := range map[int][]string{
		http.StatusBadRequest: {"mute", "for", "later"}, http.StatusConflict: {"acknowledge", "node", "nobody"},
		http.StatusForbidden: {"acknowledge", "form", "AAAA"},
	} {
		if got := say(form[0], form[1:]...); got != status {
			t.Errorf("%v: %d, want %d", form, got, status)
		}
	}
	if status := say("mute", "for", "10000h"); status != http.StatusBadRequest {
		t.Errorf("muted for ever: %d", status)
	}
	records, err := c.Journal.Read(t.Context(), journal.Query{Limit: 100})
	must(t, err)
	for _, r := range records.Records {
		if err := schematest.Problem(r.JSON); err != nil {
			t.Error(err)
		}
	}
	// A recurring fault is a new one: it is not taken over.
	before, _, _ := c.Model.Node(model.Key{Cluster: "prod", Node: "node-0"})
	must(t, c.Close())
	c.open()
	after, _, _ := c.Model.Node(model.Key{Cluster: "prod", Node: "node-0"})
	before.LastSeen, after.LastSeen = time.Time{}, time.Time{}
	if diff := cmp.Diff(before, after); diff != "" || after.Faults[0].Operator == nil {
		t.Errorf("after a restart:\n%s", diff)
	}
	c.send("node-0", event.FaultCleared, c.fault("node-0", "/data"))
	c.now = c.now.Add(time.Hour)
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	if d, _, _ := c.Model.Node(model.Key{Cluster: "prod", Node: "node-0"}); d.Faults[0].Operator != nil &&
		d.Faults[0].Operator.AcknowledgedBy != "" {
		t.Error("a fault that came again is taken over already")
	}
}

// Another site cannot act in a signed-in person's name.
func TestOtherSites(t *testing.T) {
	c := newCenter(t)
	c.signIn()
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	form := url.Values{"form": {formOf(c.page("/"))}, "what": {"acknowledge"}, "check": {"filesystem-readonly"}}
	for _, headers := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		if answer, _ := c.do("/say", form, headers...); answer.status != http.StatusForbidden {
			t.Errorf("%v: %d", headers, answer.status)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/", nil)
	w := httptest.NewRecorder()
	api.New(api.Config{Journal: c.Journal, Model: c.Model, Loopback: true, Authenticate: identitytest.Administrator(t, "x"),
		Pages: func(*api.Server) http.Handler { return http.NotFoundHandler() }}).ServeHTTP(w, r)
	if w.Code != http.StatusMisdirectedRequest {
		t.Errorf("pages are shown under the name of another site: %d", w.Code)
	}
	answer, _ := c.do("/", nil)
	if got := answer.header.Get("Content-Security-Policy"); got != web.Policy || strings.Contains(got, "unsafe") {
		t.Errorf("policy %q", got)
	}
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
		for _, bad := range []string{script, "<b>", "<i>", "\u202e"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		for _, link := range links.FindAllStringSubmatch(page, -1) {
			waiting = append(waiting, strings.ReplaceAll(link[1], "&amp;", "&"))
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d pages were reached: %v", len(seen), seen)
	}
}
