package deliver_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	sqlitecontrol "github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
)

const hookURL = "https://hooks.example.com/a"

var (
	secret = []byte("0123456789abcdef0123456789abcdef")
	me     = deliver.Who{Name: "me"}
)

// kit is a manager on a real journal and a real control store.
type kit struct {
	*deliver.Manager
	t       *testing.T
	dir     string
	journal *sqlite.Store
	config  deliver.Config
	stop    func()
	sent    map[string]int // events per node

	wrap func(control.Store) control.Store // the store that managers get; nil: the real one
}

// simulate runs a test in simulated time. Its manager sends to a receiver without a network.
func simulate(t *testing.T, settings deliver.Settings, test func(t *testing.T, k *kit, c *receiver)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &receiver{}
		test(t, newKit(t, settings, c), c)
	})
}

func newKit(t *testing.T, settings deliver.Settings, transport http.RoundTripper) *kit {
	t.Helper()
	k := &kit{t: t, dir: t.TempDir(), sent: map[string]int{}}
	for i := range settings.Targets {
		settings.Targets[i].SecretFile = k.secretFile()
	}
	k.writeSecret("whsec_" + base64.StdEncoding.EncodeToString(secret) + "\n")
	log := slog.New(slog.DiscardHandler)
	var err error
	k.journal, err = sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(k.dir, "journal"), Log: log})
	must(t, err)
	k.config = deliver.Config{Settings: settings, Journal: k.journal, Log: log, Transport: transport}
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
	k.Manager, err = deliver.Open(k.t.Context(), k.config)
	must(k.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = k.Run(ctx) })
	k.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = store.Close()
	})
}

func (k *kit) restart() {
	k.t.Helper()
	k.stop()
	k.start()
}

func (k *kit) secretFile() string { return filepath.Join(k.dir, "secret") }

func (k *kit) writeSecret(text string) {
	k.t.Helper()
	must(k.t, os.WriteFile(k.secretFile(), []byte(text), 0o600))
}

// append stores the next events of nodes.
func (k *kit) append(nodes ...string) {
	k.t.Helper()
	var events []journal.Event
	for _, node := range nodes {
		k.sent[node]++
		id, source := fmt.Sprintf("%s-%d", node, k.sent[node]), "/clusters/prod/nodes/"+node
		text := fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":%q,"type":"t","datacontenttype":"application/json",`+
			`"data":{"n":%d,"text":"a \"ü\" %%"}}`, id, source, k.sent[node])
		events = append(events, journal.Event{Source: source, ID: id, Type: "t", Cluster: "prod", Node: node, JSON: text})
	}
	_, err := k.journal.Append(k.t.Context(), events)
	must(k.t, err)
}

func (k *kit) add(one deliver.Subscription) {
	k.t.Helper()
	if one.URL == "" {
		one.URL = hookURL
	}
	if one.Name == "" {
		one.Name = "a"
	}
	must(k.t, k.Add(k.t.Context(), me, one))
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

// position returns the stored position of the subscription.
func (k *kit) position() control.Record {
	k.t.Helper()
	record, err := k.config.Store.Get(k.t.Context(), "cursors", "a")
	must(k.t, err)
	return record
}

// awaitProblem waits until the status of the only subscription has a problem.
func (k *kit) awaitProblem(want string) {
	k.t.Helper()
	journaltest.Eventually(k.t, want, func() bool { return strings.Contains(k.status().Problem, want) })
}

// letters returns the dead letters of the subscription.
func (k *kit) letters() []deliver.DeadLetter {
	k.t.Helper()
	letters, err := k.DeadLetters(k.t.Context(), "a")
	must(k.t, err)
	return letters
}

// hooks permits one target. Its name is not resolved if a transport is given.
func hooks() deliver.Settings { return anywhereAt("https://hooks.example.com/") }

func anywhereAt(url string, addresses ...string) deliver.Settings {
	t := deliver.Target{URL: url}
	for _, a := range addresses {
		t.Addresses = append(t.Addresses, netip.MustParsePrefix(a))
	}
	return deliver.Settings{Targets: []deliver.Target{t}}
}

// answer returns the status of the answer to a request.
type answer func(w http.ResponseWriter, r *http.Request, events []cloudevents.Event) int

// receiver is a foreign receiver: it reads requests with the CloudEvents SDK.
type receiver struct {
	mu       sync.Mutex // guards the fields below
	answer   answer     // nil: it accepts all events
	options  http.HandlerFunc
	taken    []string // IDs
	requests int
	problems error
	batched  bool // a request had several events
}

// RoundTrip implements http.RoundTripper, for tests without a network.
func (c *receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	c.ServeHTTP(recorder, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return recorder.Result(), nil
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	answer, options := c.answer, c.options
	c.mu.Unlock()
	if r.Method == http.MethodOptions {
		if options == nil {
			options = allow(r.Header.Get("WebHook-Request-Origin"), "")
		}
		options(w, r)
		return
	}
	events, err := verified(r)
	c.mu.Lock()
	c.requests++
	c.problems = errors.Join(c.problems, err)
	c.batched = c.batched || len(events) > 1
	c.mu.Unlock()
	if answer != nil {
		if code := answer(w, r, events); code >= 300 {
			http.Error(w, "I do\nnot like it", code)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		c.taken = append(c.taken, e.ID())
	}
	w.WriteHeader(http.StatusNoContent)
}

// allow agrees to events of an origin, at a rate if it is not empty.
func allow(origin, rate string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WebHook-Allowed-Origin", origin)
		if rate != "" {
			w.Header().Set("WebHook-Allowed-Rate", rate)
		}
	}
}

// verified returns the events of a request, with an error if one is not valid or the request not signed.
func verified(r *http.Request) (events []cloudevents.Event, err error) {
	body, err := io.ReadAll(r.Body)
	problems := []error{err, verify(r.Header, body, secret)}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if r.Header.Get("Content-Type") == cloudevents.ApplicationCloudEventsBatchJSON {
		events, err = cehttp.NewEventsFromHTTPRequest(r)
	} else if one, e := cehttp.NewEventFromHTTPRequest(r); e != nil {
		err = e
	} else {
		events = []cloudevents.Event{*one}
	}
	problems = append(problems, err)
	for _, e := range events {
		problems = append(problems, e.Validate())
	}
	return events, errors.Join(problems...)
}

// verify is the receiver's side of Standard Webhooks, as specified.
func verify(header http.Header, body, secret []byte) error {
	id, at := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return fmt.Errorf("webhook-timestamp %q: %w", at, err)
	}
	if age := time.Since(time.Unix(seconds, 0)); age > 5*time.Minute || age < -5*time.Minute {
		return fmt.Errorf("signed %s ago", age)
	}
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	for signature := range strings.FieldsSeq(header.Get("webhook-signature")) {
		given, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(signature, "v1,"))
		if err == nil && id != "" && hmac.Equal(given, mac.Sum(nil)) {
			return nil
		}
	}
	return errors.New("no signature is right")
}

func (c *receiver) answers(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = a
}

func status(code int) answer {
	return func(http.ResponseWriter, *http.Request, []cloudevents.Event) int { return code }
}

// refusing answers 500 to requests that contain one of these IDs, and accepts all others.
func refusing(ids ...string) answer {
	return func(_ http.ResponseWriter, _ *http.Request, events []cloudevents.Event) int {
		if slices.ContainsFunc(events, func(e cloudevents.Event) bool { return slices.Contains(ids, e.ID()) }) {
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	}
}

// got returns the IDs of the accepted events, in this order.
func (c *receiver) got() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.taken)
}

// expect compares the accepted events, in this order.
func (c *receiver) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, c.got()); diff != "" {
		t.Error(diff)
	}
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
	want, got := map[string][]string{}, map[string][]string{}
	for node, sent := range k.sent {
		for n := range sent {
			want[node] = append(want[node], fmt.Sprintf("%s-%d", node, n+1))
		}
	}
	for _, id := range c.got() {
		if node, _, _ := strings.Cut(id, "-"); !slices.Contains(got[node], id) {
			got[node] = append(got[node], id)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.t.Error(diff)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problems != nil {
		k.t.Error(c.problems)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
