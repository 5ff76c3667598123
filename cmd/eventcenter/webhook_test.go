package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event/eventtest"
)

// webhook is a receiver that counts accepted events.
type webhook struct {
	eventtest.Receiver
	t     *testing.T
	url   string
	taken map[string]int // by "node/id"
}

// newWebhook returns a receiver. If ordered, first deliveries of a node's events must be in the node's order; with
// replays they are not.
func newWebhook(t *testing.T, ordered bool) *webhook {
	h := &webhook{t: t, taken: map[string]int{}}
	newest := map[string]string{} // of each node: an ID
	h.Take = func(e cloudevents.Event) error {
		node := fmt.Sprint(e.Extensions()["partitionkey"])
		key, before := node+"/"+e.ID(), newest[node]
		newest[node] = max(before, e.ID())
		h.taken[key]++
		return unless(!ordered || h.taken[key] > 1 || e.ID() > before, "%s came after %s", key, before)
	}
	server := httptest.NewServer(h)
	h.url = server.URL
	t.Cleanup(func() {
		server.Close()
		must(t, errors.Join(h.Problems...))
	})
	return h
}

// refuses makes the receiver refuse events.
func (h *webhook) refuses(which func(id string) bool) {
	h.Answers(func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
		refused := slices.ContainsFunc(events, func(e cloudevents.Event) bool { return which(e.ID()) })
		if refused {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return refused
	})
}

func (h *webhook) count() int {
	h.Lock()
	defer h.Unlock()
	return len(h.taken)
}

// settings writes a file that permits the receiver, and returns its name.
func (h *webhook) settings(more string) string {
	h.t.Helper()
	dir := h.t.TempDir()
	secret := put(h.t, dir, "secret", "whsec_"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32))))
	return put(h.t, dir, "subscriptions.yaml", fmt.Sprintf("targets:\n  - url: %s\n    addresses: [127.0.0.0/8]\n"+
		"    secretFile: %s\n%s", h.url, secret, more))
}

// awaits waits until an event has arrived this often.
func (h *webhook) awaits(times int, id string) {
	h.t.Helper()
	await(h.t, func() error {
		h.Lock()
		defer h.Unlock()
		return unless(h.taken[id] >= times, "%s came %d times; %d events came", id, h.taken[id], len(h.taken))
	})
}

// awaitAll waits until every acknowledged event has arrived.
func (h *webhook) awaitAll(l *load) {
	h.t.Helper()
	for id := range l.acked {
		h.awaits(1, id)
	}
}

// Changes to subscriptions with the command: each verb, its exit code, and the author in the audit.
func TestSubscriptionVerbs(t *testing.T) {
	h := newWebhook(t, false)
	dir := t.TempDir()
	p := start(t, dir, "--subscriptions", h.settings("giveUpAfter: 1s\n"))
	run := func(want int, has string, args ...string) string {
		t.Helper()
		out := expect(t, want, has, append(args, "--dir", dir)...)
		if strings.ContainsAny(out, "\x1b\r") {
			t.Errorf("%v: control characters in %q", args, out)
		}
		return out
	}
	first, second := raised("node-1", 1), raised("node-1", 2)
	run(exitFine, "NAME", "subscriptions", "list")
	run(exitCouldNotTell, "not among the targets", "subscriptions", "add", "evil", "--url", "http://169.254.169.254/")
	run(exitCouldNotTell, "too costly", "subscriptions", "add", "slow", "--url", h.url, "--cel",
		"data.a.all(x, data.b.all(y, x == y))")
	run(exitFine, "added", "subscriptions", "add", "a", "--url", h.url+"/a", "--node", "node-1", "--cel", `severity != "info"`)
	run(exitCouldNotTell, "there is a subscription", "subscriptions", "add", "a", "--url", h.url)
	h.refuses(func(id string) bool { return id == first.ID() })
	must(t, p.post(first, raised("node-2", 1), second))
	h.awaits(1, "node-1/"+second.ID())
	run(exitProblems, "a ", "subscriptions", "list")
	out := run(exitProblems, "500 Internal Server Error", "dead-letters", "list", "-o", "json")
	var list struct{ DeadLetters []struct{ ID, Offset string } }
	must(t, json.Unmarshal([]byte(out), &list))
	if len(list.DeadLetters) != 1 || list.DeadLetters[0].Offset != "1" {
		t.Fatal(out)
	}
	id := list.DeadLetters[0].ID
	run(exitFine, "the name server is slow", "dead-letters", "show", "a", id)
	run(exitCouldNotTell, "there is none", "dead-letters", "show", "a", "x")
	h.Answers(nil)
	run(exitFine, "tried again", "dead-letters", "replay", "a", id)
	h.awaits(1, "node-1/"+first.ID())
	run(exitFine, "begins after 1", "replay", "--subscription", "a", "--after", "1")
	h.awaits(2, "node-1/"+second.ID())
	await(t, func() error { // the end of the replay
		return p.has("/metrics", http.StatusOK, `_dead_total{subscription="a"} 1`,
			`eventcenter_subscription_lag_events{subscription="a"} 0`)
	})
	if h.count() != 2 {
		t.Errorf("%d events came, want those of the node alone", h.count())
	}
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
		before, _, found := strings.Cut(out, "  "+what+"  ")
		if !found || strings.Contains(before, "  add  ") {
			t.Errorf("no %s, in this order, in\n%s", what, out)
		}
	}
	expect(t, exitFine, "", "restore", archive, "--dir", restored)
	again := start(t, restored) // where its target is not permitted
	expect(t, exitProblems, "is not among the targets", "subscriptions", "list", "--dir", restored)
	p.stop(syscall.SIGTERM)
	again.stop(syscall.SIGTERM) // their logs are complete
	logs := p.log.String() + again.log.String()
	for _, secret := range []string{"whsec_", strings.Repeat("s", 32), base64.StdEncoding.EncodeToString(
		[]byte(strings.Repeat("s", 32))), p.token(), h.url + "/a"} {
		if strings.Contains(logs, secret) {
			t.Errorf("%q is in a log: %s", secret, logs)
		}
	}
}
