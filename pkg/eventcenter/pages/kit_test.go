package pages

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

// center is an event center with its journal and its pages, and a browser that uses it.
type center struct {
	testing.TB
	*eventcenter.Center
	dir      string
	sessions *web.Sessions
	control  control.Store
	now      time.Time
	url      string
	browser  *http.Client
	sent     uint64
}

func newCenter(t testing.TB) *center {
	c := &center{TB: t, dir: t.TempDir(), now: time.Now()}
	c.open()
	t.Cleanup(func() { _ = c.Close() })
	var err error
	c.control, err = sqlite.Open(t.Context(), filepath.Join(c.dir, eventcenter.ControlFile))
	must(t, err)
	t.Cleanup(func() { _ = c.control.Close() })
	c.sessions = c.another()
	log := slog.New(slog.DiscardHandler)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.New(api.Config{Journal: c.Journal, Model: c.Model, Log: log, Loopback: true, Reports: c.Reports, SignIn: c.sessions.Invite,
			Authenticate: c.sessions.Authenticate(identitytest.Administrator(t, "secret")), Now: func() time.Time { return c.now },
			Pages: func(center *api.Server) http.Handler { return New(center, c.sessions, nil, "v1") }}).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	must(t, err)
	c.url = server.URL
	c.browser = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return c
}

// another returns the sessions of another replica.
func (c *center) another() *web.Sessions {
	return web.NewSessions(c.control, "eventcenter", false, func() time.Time { return c.now })
}

func (c *center) open() {
	c.Helper()
	var err error
	c.Center, err = eventcenter.Open(c.Context(), eventcenter.Options{Dir: c.dir, Log: slog.New(slog.DiscardHandler)})
	must(c, err)
}

// answer is the response to a browser, except for the page.
type answer struct {
	status int
	header http.Header
}

// do sends a request as the browser does; a form makes it a POST.
func (c *center) do(path string, form url.Values, headers ...string) (a answer, page string) {
	c.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(c.Context(), method, c.url+path, body)
	must(c, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.browser.Do(r)
	must(c, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(c, err)
	return answer{response.StatusCode, response.Header}, string(text)
}

// page returns a page that must exist.
func (c *center) page(path string) string {
	c.Helper()
	answer, text := c.do(path, nil)
	if answer.status != http.StatusOK {
		c.Fatalf("%s: %d", path, answer.status)
	}
	return text
}

// answers demands a status, to a browser's request or form.
func (c *center) answers(what string, want int, path string, form url.Values, headers ...string) answer {
	c.Helper()
	answer, _ := c.do(path, form, headers...)
	expecttest.Equal(c.TB, what, want, answer.status)
	return answer
}

// code returns a code to sign in.
func (c *center) code(name string, operator bool) string {
	c.Helper()
	code, _, err := c.sessions.Code(c.Context(), web.Person{Name: name, Operator: operator})
	must(c, err)
	return code
}

func (c *center) signIn() {
	c.Helper()
	c.answers("sign in", http.StatusSeeOther, "/login", url.Values{"code": {c.code("ada", true)}})
}

const stream = "01K9Z0AAAAAAAAAAAAAAAAAAA"

// send sends an event of a node's agent.
func (c *center) send(node string, t event.Type, data any) {
	c.Helper()
	c.sent++
	e := event.Event{Type: t, Cluster: "prod", Node: node, Time: c.now, Severity: finding.Info, BootID: "b",
		Stream: stream + "0", Sequence: c.sent, Data: data}
	if f, ok := data.(event.Fault); ok {
		e.Severity = f.Severity
		e.Subject = event.Subject{Check: f.Check, Reason: f.Reason, Kind: f.Subject.Kind, Name: f.Subject.Name}
	}
	text, err := e.Encode()
	must(c, err)
	c.post(text)
}

// detect sends a fault of a detector.
func (c *center) detect(node, detector, reason, name string) {
	c.Helper()
	c.sent++
	c.post(fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","time":%q,"source":"/clusters/prod/nodes/%s/%s","type":%q,
	 "data":{"check":"filesystem-readonly","reason":%q,"severity":"warning","ttlSeconds":604800,
	 "subject":{"kind":"filesystem","name":%q}}}`, c.sent, c.now.Format(time.RFC3339Nano), node, detector, event.FaultRaised,
		reason, name))
}

// post sends an event in structured mode.
func (c *center) post(text []byte) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), http.MethodPost, c.url+"/v1/events", bytes.NewReader(text))
	must(c, err)
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Content-Type", "application/cloudevents+json")
	answer, err := http.DefaultClient.Do(r)
	must(c, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		c.Fatalf("%s: %s", answer.Status, text)
	}
}

func (c *center) fault(node, name string) event.Fault {
	return event.Fault{ID: node + name, Check: "filesystem-readonly", Reason: "FilesystemReadonly",
		Subject: finding.Subject{Kind: "filesystem", Name: name}, Severity: finding.Fatal,
		Message: name + " takes no writes", RaisedAt: c.now.Add(-time.Hour).UTC(), ObservedAt: c.now.Add(-time.Hour).UTC()}
}

// wants reports texts missing on a page.
func (c *center) wants(page string, texts ...string) {
	c.Helper()
	expecttest.Has(c, "the page", page, texts...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
