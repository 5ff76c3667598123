package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// webhook is a receiver built with the CloudEvents SDK that counts accepted events, and refuses some.
type webhook struct {
	t   *testing.T
	url string
	// ordered demands that the events of a node arrive in order; tests with replays leave it false
	ordered bool
	kills   bool // its senders are killed

	mu     sync.Mutex // guards the fields below
	taken  map[string]int
	next   map[string]string // of each node: the newest accepted ID
	refuse func(id string) bool
}

func newWebhook(t *testing.T) *webhook {
	h := &webhook{t: t, taken: map[string]int{}, next: map[string]string{}}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodOptions {
		w.Header().Set("WebHook-Allowed-Origin", "*")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil && h.kills { // a partial request, however it broke off
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	events, err := cehttp.NewEventsFromHTTPRequest(r)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if h.refuse != nil && h.refuse(e.ID()) {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	if err != nil {
		h.t.Error(err)
	}
	for _, e := range events {
		h.take(e)
	}
}

// take records an event. First deliveries of a node's events must be in the node's order.
func (h *webhook) take(e cloudevents.Event) {
	key := fmt.Sprint(e.Extensions()["partitionkey"], "/", e.ID())
	node := fmt.Sprint(e.Extensions()["partitionkey"])
	if h.ordered && h.taken[key] == 0 && e.ID() < h.next[node] {
		h.t.Errorf("%s came after %s", key, h.next[node])
	}
	h.taken[key]++
	h.next[node] = max(h.next[node], e.ID())
}

func (h *webhook) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.taken)
}

// settings writes a file that permits the receiver, and returns its name.
func (h *webhook) settings(more string) string {
	h.t.Helper()
	dir := h.t.TempDir()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))
	text := fmt.Sprintf("targets:\n  - url: %s\n    addresses: [127.0.0.0/8]\n    secretFile: %s\n%s", h.url,
		filepath.Join(dir, "secret"), more)
	for name, text := range map[string]string{"secret": secret, "subscriptions.yaml": text} {
		must(h.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "subscriptions.yaml")
}

func (h *webhook) await(what string, is func() bool) {
	h.t.Helper()
	if !eventually(patience, is) {
		h.t.Fatalf("%s: not in time; %d events came", what, h.count())
	}
}

// awaitAll waits until every acknowledged event has arrived.
func (h *webhook) awaitAll(l *load) {
	h.t.Helper()
	h.await("all that was acknowledged", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		for id := range l.acked {
			if h.taken[id] == 0 {
				return false
			}
		}
		return true
	})
}

// Changes to subscriptions with the command: each verb, its exit code, and the author in the audit.
func TestSubscriptionVerbs(t *testing.T) {
	h := newWebhook(t)
	dir := t.TempDir()
	p := start(t, dir, "--subscriptions", h.settings("giveUpAfter: 1s\n"))
	run := func(want int, has string, args ...string) string {
		t.Helper()
		out, code := cli(t, append(args, "--dir", dir)...)
		if code != want || !strings.Contains(out, has) || strings.ContainsAny(out, "\x1b\r") {
			t.Errorf("%v: %d, want %d and %q: %s", args, code, want, has, out)
		}
		return out
	}
	run(exitFine, "NAME", "subscriptions", "list")
	run(exitCouldNotTell, "not among the targets", "subscriptions", "add", "evil", "--url", "http://169.254.169.254/")
	run(exitCouldNotTell, "too costly", "subscriptions", "add", "slow", "--url", h.url, "--cel",
		"data.a.all(x, data.b.all(y, x == y))")
	run(exitFine, "added", "subscriptions", "add", "a", "--url", h.url+"/a", "--node", "node-1", "--cel", `severity != "info"`)
	run(exitCouldNotTell, "there is a subscription", "subscriptions", "add", "a", "--url", h.url)
	h.mu.Lock()
	h.refuse = func(id string) bool { return strings.HasSuffix(id, "1") }
	h.mu.Unlock()
	must(t, p.post(raised("node-1", 1), raised("node-2", 1), raised("node-1", 2)))
	h.await("the second of the node", func() bool { return h.count() == 1 })
	run(exitProblems, "a ", "subscriptions", "list")
	out := run(exitProblems, "500 Internal Server Error", "dead-letters", "list", "-o", "json")
	var list struct{ DeadLetters []struct{ ID, Offset string } }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.DeadLetters) != 1 || list.DeadLetters[0].Offset != "1" {
		t.Fatalf("%s: %v", out, err)
	}
	id := list.DeadLetters[0].ID
	run(exitFine, "the name server is slow", "dead-letters", "show", "a", id)
	run(exitCouldNotTell, "there is none", "dead-letters", "show", "a", "x")
	h.mu.Lock()
	h.refuse = nil
	h.mu.Unlock()
	run(exitFine, "tried again", "dead-letters", "replay", "a", id)
	h.await("the dead letter", func() bool { return h.count() == 2 })
	run(exitFine, "begins after 1", "replay", "--subscription", "a", "--after", "1")
	h.await("the replay", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.taken["node-1/"+raised("node-1", 2).ID()] == 2
	})
	h.await("the end of the replay", func() bool {
		status, metrics, err := p.do(http.MethodGet, "/metrics", "", nil)
		return err == nil && status == http.StatusOK &&
			strings.Contains(string(metrics), `_dead_total{subscription="a"} 1`) &&
			strings.Contains(string(metrics), `eventcenter_subscription_lag_events{subscription="a"} 0`)
	})
	run(exitCouldNotTell, "not here yet", "replay", "--subscription", "a", "--after", "99")
	run(exitFine, "paused", "subscriptions", "pause", "a")
	run(exitProblems, "paused: by administrator", "subscriptions", "list")
	run(exitFine, "resumed", "subscriptions", "resume", "a")
	run(exitCouldNotTell, "there is none", "dead-letters", "delete", "a", id)
	archive, restored := filepath.Join(t.TempDir(), "b.tar"), filepath.Join(t.TempDir(), "r")
	run(exitFine, "up to offset 3", "backup", archive)
	run(exitFine, "removed", "subscriptions", "remove", "a")
	if out := run(exitFine, "", "subscriptions", "list"); strings.Contains(out, h.url) {
		t.Error(out)
	}
	out = run(exitFine, "administrator", "subscriptions", "audit")
	for _, what := range []string{"remove", "resume", "pause", "replay", "replay dead letter", "add"} {
		before, after, found := strings.Cut(out, "  "+what+"  ")
		if !found || strings.Contains(before, "  add  ") {
			t.Errorf("no %s, in this order, in\n%s", what, out)
		}
		_ = after
	}
	if out, code := cli(t, "restore", archive, "--dir", restored); code != exitFine {
		t.Fatal(out)
	}
	again := start(t, restored)
	if out, _ := cli(t, "subscriptions", "list", "--dir", restored); !strings.Contains(out, "is not among the targets") {
		t.Errorf("restored where its target is not permitted: %s", out)
	}
	p.stop(syscall.SIGTERM)
	again.stop(syscall.SIGTERM) // their logs are complete
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	must(t, err)
	for _, secret := range []string{"whsec_", strings.Repeat("s", 32), base64.StdEncoding.EncodeToString(
		[]byte(strings.Repeat("s", 32))), strings.TrimSpace(string(token)), h.url + "/a"} {
		for name, text := range map[string]string{"log": p.log.String(), "log of the other": again.log.String()} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in the %s: %s", secret, name, text)
			}
		}
	}
}
