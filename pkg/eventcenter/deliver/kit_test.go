package deliver_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	sqlitecontrol "github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// kit is a manager on a real journal and a real control store.
type kit struct {
	*deliver.Manager
	t       *testing.T
	dir     string
	journal *sqlite.Store
	log     *slog.Logger
	config  deliver.Config
	stop    func()
	sent    map[string]int // events per node

	wrap func(control.Store) control.Store // the store that managers get; nil: the real one
}

func newKit(t *testing.T, settings deliver.Settings, transport http.RoundTripper) *kit {
	t.Helper()
	k := &kit{t: t, dir: t.TempDir(), log: slog.New(slog.NewTextHandler(io.Discard, nil)), sent: map[string]int{}}
	file := filepath.Join(k.dir, "secret")
	must(t, os.WriteFile(file, []byte("whsec_"+base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600))
	for i := range settings.Targets {
		settings.Targets[i].SecretFile = file
	}
	var err error
	k.journal, err = sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(k.dir, "journal"), Log: k.log})
	must(t, err)
	k.config = deliver.Config{Settings: settings, Journal: k.journal, Log: k.log, Transport: transport}
	k.start()
	t.Cleanup(func() {
		k.stop()
		_ = k.journal.Close()
	})
	return k
}

// start opens a manager and runs it, as a center does when it starts.
func (k *kit) start() {
	k.t.Helper()
	store, err := sqlitecontrol.Open(k.t.Context(), filepath.Join(k.dir, "control.db"))
	must(k.t, err)
	k.config.Store = store
	if k.wrap != nil {
		k.config.Store = k.wrap(store)
	}
	if k.Manager, err = deliver.Open(k.t.Context(), k.config); err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		_ = k.Run(ctx)
		close(done)
	}()
	k.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = store.Close()
	})
}

// append stores the next events of nodes.
func (k *kit) append(nodes ...string) {
	k.t.Helper()
	var events []journal.Event
	for _, node := range nodes {
		k.sent[node]++
		e := cloudevents.New()
		e.SetID(fmt.Sprintf("%s-%d", node, k.sent[node]))
		e.SetSource("/clusters/prod/nodes/" + node)
		e.SetType("io.github.nodeagent.fault.raised.v1")
		e.SetExtension("severity", "fatal")
		e.SetExtension("partitionkey", node)
		must(k.t, e.SetData(cloudevents.ApplicationJSON, map[string]any{"n": k.sent[node], "text": "a \"ü\" %"}))
		text, err := e.MarshalJSON()
		must(k.t, err)
		events = append(events, journal.Event{Source: e.Source(), ID: e.ID(), Type: e.Type(), Cluster: "prod", Node: node,
			Severity: "fatal", JSON: text})
	}
	if _, err := k.journal.Append(k.t.Context(), events); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kit) add(one deliver.Subscription) {
	k.t.Helper()
	if one.URL == "" {
		one.URL = "https://hooks.example.com/a"
	}
	if one.Name == "" {
		one.Name = "a"
	}
	must(k.t, k.Add(k.t.Context(), deliver.Who{Name: "me"}, one))
}

// status returns the status of the only subscription.
func (k *kit) status() deliver.Status {
	k.t.Helper()
	list := k.List()
	if len(list) != 1 {
		k.t.Fatalf("%+v", list)
	}
	return list[0]
}

// eventually waits for a condition that soon holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 12000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not within two minutes", what)
}

// hooks permits one target. Its name is not resolved if a transport is given.
func hooks() deliver.Settings {
	return deliver.Settings{Targets: []deliver.Target{{URL: "https://hooks.example.com/"}}}
}

func anywhereAt(url string, addresses ...string) deliver.Settings {
	t := deliver.Target{URL: url}
	for _, a := range addresses {
		t.Addresses = append(t.Addresses, netip.MustParsePrefix(a))
	}
	return deliver.Settings{Targets: []deliver.Target{t}}
}

// receiver is a foreign receiver: it reads requests with the CloudEvents SDK.
type receiver struct {
	mu       sync.Mutex // guards the fields below
	answer   func(w http.ResponseWriter, r *http.Request, events []cloudevents.Event) bool
	options  func(w http.ResponseWriter, r *http.Request)
	taken    []string // IDs
	requests int
	problems []string
	largest  int
}

// RoundTrip implements http.RoundTripper, for tests without a network.
func (c *receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	done := make(chan *http.Response, 1)
	go func() {
		recorder := httptest.NewRecorder()
		c.ServeHTTP(recorder, r)
		done <- recorder.Result()
	}()
	select {
	case response := <-done:
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	answer, options := c.answer, c.options
	c.mu.Unlock()
	if r.Method == http.MethodOptions {
		if options != nil {
			options(w, r)
			return
		}
		w.Header().Set("WebHook-Allowed-Origin", r.Header.Get("WebHook-Request-Origin"))
		return
	}
	body, err := io.ReadAll(r.Body)
	problem := verify(r.Header, body, secret)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	events := []cloudevents.Event{}
	if r.Header.Get("Content-Type") == cloudevents.ApplicationCloudEventsBatchJSON {
		events, err = cehttp.NewEventsFromHTTPRequest(r)
	} else if one, e := cehttp.NewEventFromHTTPRequest(r); e == nil {
		events = append(events, *one)
	} else {
		err = e
	}
	c.mu.Lock()
	c.requests++
	c.largest = max(c.largest, len(events))
	for _, e := range events {
		if err == nil {
			err = e.Validate()
		}
	}
	for _, p := range []error{err, problem} {
		if p != nil {
			c.problems = append(c.problems, p.Error())
		}
	}
	c.mu.Unlock()
	if answer != nil && answer(w, r, events) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		c.taken = append(c.taken, e.ID())
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *receiver) answers(f func(w http.ResponseWriter, r *http.Request, events []cloudevents.Event) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

func status(code int) func(http.ResponseWriter, *http.Request, []cloudevents.Event) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
		w.WriteHeader(code)
		return true
	}
}

// refusing answers 500 to requests that contain one of these IDs, and accepts all others.
func refusing(ids ...string) func(http.ResponseWriter, *http.Request, []cloudevents.Event) bool {
	return func(w http.ResponseWriter, _ *http.Request, events []cloudevents.Event) bool {
		bad := slices.ContainsFunc(events, func(e cloudevents.Event) bool { return slices.Contains(ids, e.ID()) })
		if bad {
			http.Error(w, "I do\nnot like it", http.StatusInternalServerError)
		}
		return bad
	}
}

// got returns the IDs of the accepted events, in this order.
func (c *receiver) got() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.taken)
}

func (c *receiver) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// check fails the test if a request was not readable or not signed, an event of the journal is missing, or the first
// deliveries of a node are not in order.
func (c *receiver) check(k *kit) {
	k.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.problems {
		k.t.Error(p)
	}
	next := map[string]int{}
	for _, id := range c.taken {
		node, number, _ := strings.Cut(id, "-")
		var n int
		_, _ = fmt.Sscan(number, &n)
		switch {
		case n == next[node]+1:
			next[node] = n
		case n > next[node]+1:
			k.t.Errorf("%s came after %d", id, next[node])
		}
	}
	for node, sent := range k.sent {
		if next[node] != sent {
			k.t.Errorf("of %s %d events came, %d were sent", node, next[node], sent)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
