// Package browser opens the pages of the event center in a real browser: a module of its own, whose tests need Chromium.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/pages"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/oidc"
)

var (
	axeFile     = flag.String("axe", "", "axe.min.js of the npm package axe-core")
	screenshots = flag.String("screenshots", "", "directory that gets a picture of each page")
)

// serve runs a center with 60 nodes, of which some are sick.
func serve(t *testing.T) (address string, sessions *web.Sessions) {
	sessions = newSessions(t)
	return open(t, sessions, func(string) web.SignIn { return nil }), sessions
}

func newSessions(t *testing.T) *web.Sessions {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), eventcenter.ControlFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return web.NewSessions(store, "eventcenter", false, time.Now)
}

// serveWith is serve, with an identity provider made for the center's address.
func serveWith(t *testing.T, provider func(address string) *oidc.Provider) (address string) {
	return open(t, newSessions(t), func(address string) web.SignIn { return provider(address) })
}

func open(t *testing.T, sessions *web.Sessions, provider func(address string) web.SignIn) (address string) {
	log := slog.New(slog.DiscardHandler)
	center, err := eventcenter.Open(t.Context(), eventcenter.Options{Dir: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = center.Close() })
	administrator := func(r *http.Request) (web.Identity, error) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			return web.Identity{}, errors.New("not the token")
		}
		return web.Identity{Name: "administrator", By: "local token", Reads: true, Any: true}, nil
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = api.New(api.Config{Journal: center.Journal, Model: center.Model, Log: log,
		Loopback: true, Reports: center.Reports, Authenticate: sessions.Authenticate(administrator),
		Pages: func(center *api.Server) http.Handler {
			return pages.New(center, sessions, provider("http://"+server.Listener.Addr().String()), "test")
		}})
	server.Start()
	t.Cleanup(server.Close)
	for i := range 60 {
		var batch []json.RawMessage
		for _, e := range said(t, i) {
			text, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, text)
		}
		post(t, server.URL, batch)
	}
	return server.URL
}

func post(t *testing.T, address string, batch []json.RawMessage) {
	t.Helper()
	body, err := json.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/v1/events", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Content-Type", "application/cloudevents-batch+json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(err, answer)
	}
	_ = answer.Body.Close()
}

const hostile = `<script>document.title="owned"</script><img src=x onerror="document.title='owned'">`

// said returns the events that the agent of a node has sent.
func said(t *testing.T, i int) (events []event.Event) {
	node := fmt.Sprintf("node-%02d", i)
	say := func(kind event.Type, s event.Subject, severity finding.Severity, data any) {
		events = append(events, event.Event{Type: kind, Cluster: "prod", Node: node, Subject: s, Time: time.Now(),
			Severity: severity, BootID: "b", Stream: fmt.Sprintf("01K9Z0%020d", i), Sequence: uint64(len(events) + 1),
			Data: data})
	}
	fault := func(check, reason, name, message string, severity finding.Severity) {
		say(event.FaultRaised, event.Subject{Check: check, Reason: reason, Kind: "filesystem", Name: name}, severity,
			event.Fault{ID: node + check, Check: check, Reason: reason, Message: message, Severity: severity,
				Subject: finding.Subject{Kind: "filesystem", Name: name}, RaisedAt: time.Now().Add(-time.Hour),
				Facts: map[string]string{"device": "sdb"}})
	}
	say(event.AgentStarted, event.Subject{}, finding.Info, event.Agent{Version: "1.2.3", Configuration: "abcdef012345"})
	if i%15 == 3 {
		fault("filesystem-readonly", "FilesystemReadonly", "/var/lib/kubelet",
			"ext4 on /dev/sdb1 became read-only after an I/O error", finding.Fatal)
	}
	if i%4 == 1 {
		fault("time-sync", "ClockNotSynchronized", "clock", "the clock is not synchronized since 26 minutes",
			finding.Warning)
	}
	if i == 3 {
		fault("kernel-log", "Hostile", hostile, hostile, finding.Warning)
		say(event.LeftoverFound, event.Subject{Check: "leftovers", Reason: "LeftoverFound", Kind: "cgroup", Name: "/kubepods/x"},
			finding.Info, event.Activity{Check: "leftovers", Kind: finding.LeftoverFound, FoundAt: time.Now(),
				Subject: finding.Subject{Kind: "cgroup", Name: "/kubepods/x"},
				Pod:     finding.Subject{Kind: "pod", Name: "shop/cart-0"}, Message: "no witness knows its pod"})
	}
	return events
}

// browser starts Chromium, which ends with the test. Complaints of its pages fail the test.
func browser(t *testing.T, script bool) context.Context {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.WindowSize(1280, 900))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	chromedp.ListenTarget(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page threw: %s", e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				for _, a := range e.Args {
					t.Errorf("the page complains: %s %s", a.Value, a.Description)
				}
			}
		}
	})
	if err := chromedp.Run(ctx, emulation.SetScriptExecutionDisabled(!script)); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func run(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func signIn(t *testing.T, ctx context.Context, address string, sessions *web.Sessions) {
	t.Helper()
	code, _, err := sessions.Code(t.Context(), web.Person{Name: "ada", Operator: true})
	if err != nil {
		t.Fatal(err)
	}
	run(t, ctx, chromedp.Navigate(address+"/"), chromedp.WaitVisible(`input[name="code"]`),
		chromedp.SendKeys(`input[name="code"]`, code+"\r"), chromedp.WaitVisible(".tiles"))
}

// A person signs in, finds a sick node, and takes its fault over: with and without JavaScript.
func TestPerson(t *testing.T) {
	for _, script := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", script), func(t *testing.T) {
			address, sessions := serve(t)
			ctx := browser(t, script)
			signIn(t, ctx, address, sessions)
			var text string
			run(t, ctx, chromedp.Click(`//a[text()="FilesystemReadonly"]`),
				chromedp.Click(`//td/a[text()="node-18"]`), chromedp.WaitVisible(".fault"),
				chromedp.Click(`//summary[text()="Say something of it"]`),
				chromedp.WaitVisible(`.fault input[name="text"]`),
				chromedp.SendKeys(`.fault input[name="text"]`, "disk ordered"),
				chromedp.Click(`.fault button[value="acknowledge"]`), chromedp.WaitVisible(".fault q"),
				chromedp.Text("main", &text))
			for _, want := range []string{"taken over by ada", "disk ordered", "operator.acknowledged.v1"} {
				if !strings.Contains(text, want) {
					t.Errorf("the page has no %q:\n%s", want, text)
				}
			}
		})
	}
}

// A page that cannot be brought up to date says so: without its center, until that is back, and after the session.
func TestOutdatedPage(t *testing.T) {
	address, sessions := serve(t)
	ctx := browser(t, true)
	signIn(t, ctx, address, sessions)
	says := func(what, want string) {
		t.Helper()
		var text string
		run(t, ctx, chromedp.Evaluate("refresh()", nil, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
			return p.WithAwaitPromise(true)
		}), chromedp.TextContent(`[role="status"]`, &text))
		if (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("%s, the page says %q", what, text)
		}
	}
	offline := func(is bool) chromedp.Action { return network.EmulateNetworkConditions(is, 0, -1, -1) }
	run(t, ctx, network.Enable(), offline(true))
	says("without the center", "cannot be reached")
	run(t, ctx, offline(false))
	says("with the center", "")
	run(t, ctx, network.ClearBrowserCookies())
	says("without a session", "not signed in any more")
}

// Every page is shown, does not run code from an agent, and is accessible (WCAG 2, by axe), in the light and the dark.
func TestPages(t *testing.T) {
	address, sessions := serve(t)
	ctx := browser(t, true)
	signIn(t, ctx, address, sessions)
	shown(t, ctx, address, map[string]string{
		"fleet": "/", "faults": "/faults", "fault": "/faults/time-sync?reason=ClockNotSynchronized", "nodes": "/agents",
		"node": "/nodes/prod/node-03", "leftovers": "/leftovers", "events": "/events", "day": "/reports/daily",
		"week": "/reports/weekly", "none": "/nodes/prod/none",
		"login": "/login", "subscriptions": "/subscriptions",
	})
}

// shown opens pages by name, in the light and the dark.
func shown(t *testing.T, ctx context.Context, address string, pages map[string]string) {
	t.Helper()
	axe := ""
	if *axeFile != "" {
		text, err := os.ReadFile(*axeFile)
		if err != nil {
			t.Fatal(err)
		}
		axe = string(text)
	}
	for name, path := range pages {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				var title string
				var picture []byte
				run(t, ctx, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
					{Name: "prefers-color-scheme", Value: scheme}}),
					chromedp.Navigate(address+path), chromedp.WaitVisible("h1"), chromedp.Title(&title),
					chromedp.FullScreenshot(&picture, 100))
				if strings.Contains(title, "owned") {
					t.Error("what an agent sent was run")
				}
				if *screenshots != "" {
					file := filepath.Join(*screenshots, name+"-"+scheme+".png")
					if err := os.WriteFile(file, picture, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if axe != "" {
					accessible(t, ctx, axe)
				}
			})
		}
	}
}

func accessible(t *testing.T, ctx context.Context, axe string) {
	t.Helper()
	var found []string
	run(t, ctx, chromedp.Evaluate(axe+";null", nil), chromedp.Evaluate(`axe.run(document).then(r =>
		r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html + " " + n.failureSummary)))`, &found,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, violation := range found {
		t.Error(violation)
	}
}
