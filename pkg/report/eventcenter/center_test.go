package eventcenter_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// center is a receiver of CloudEvents that uses the SDK instead of our code to read requests. It also decodes each
// accepted event as an agent's event.
type center struct {
	mu       sync.Mutex // guards all below
	answer   func(w http.ResponseWriter, request *http.Request, events []cloudevents.Event) bool
	events   []event.Event
	problems []string
	requests int

	// the senders get killed: they do not know whether the events in flight arrived, and report them as lost
	kills bool
}

// ServeHTTP implements http.Handler. It accepts, unless the center has an answer of its own.
func (c *center) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var events []cloudevents.Event
	body, err := io.ReadAll(request.Body)
	if err != nil && c.kills { // a partial request of a killed sender
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	if request.Header.Get("Content-Type") == event.BatchMediaType {
		events, err = cehttp.NewEventsFromHTTPRequest(request)
	} else {
		var one *cloudevents.Event
		if one, err = cehttp.NewEventFromHTTPRequest(request); err == nil {
			events = []cloudevents.Event{*one}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	if err != nil {
		c.problems = append(c.problems, err.Error())
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if c.answer != nil && c.answer(w, request, events) {
		return
	}
	for _, one := range events {
		data, err := one.MarshalJSON()
		if err == nil {
			err = schematest.Problem(data)
		}
		if err == nil {
			var e event.Event
			if e, err = event.Decode(data); err == nil {
				c.events = append(c.events, e)
			}
		}
		if err != nil {
			c.problems = append(c.problems, err.Error())
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *center) answers(f func(w http.ResponseWriter, request *http.Request, events []cloudevents.Event) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// asked returns the number of requests.
func (c *center) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

func (c *center) received() []event.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// lines returns the received events, each once: the type, and the reason or message.
func (c *center) lines(types ...event.Type) []string {
	var lines []string
	seen := map[string]bool{}
	for _, e := range c.received() {
		if seen[e.ID()] || !slices.Contains(types, e.Type) && len(types) > 0 {
			continue
		}
		seen[e.ID()] = true
		switch data := e.Data.(type) {
		case event.Fault:
			lines = append(lines, data.Reason)
		case event.Activity:
			lines = append(lines, data.Message)
		}
	}
	return lines
}

// check fails the test if an event was unreadable, or a stream of changes has gaps that no agent.gap names.
func (c *center) check(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.problems {
		t.Error(p)
	}
	came, named, newest := map[string]map[uint64]bool{}, map[string]map[uint64]bool{}, map[string]uint64{}
	note := func(all map[string]map[uint64]bool, stream string, n uint64) {
		if all[stream] == nil {
			all[stream] = map[uint64]bool{}
		}
		all[stream][n], newest[stream] = true, max(newest[stream], n)
	}
	for _, e := range c.events {
		if e.Type == event.NodeSnapshot || e.Type == event.AgentAlive {
			continue
		}
		note(came, e.Stream, e.Sequence)
		if gap, ok := e.Data.(event.Gap); ok {
			for _, r := range gap.Ranges {
				var from, to uint64
				fmt.Sscanf(r.From+" "+r.To, "%d %d", &from, &to)
				for n := from; n <= to; n++ {
					id := cmp.Or(r.Stream, e.Stream)
					if r.Reason == "lost" && came[id][n] && !c.kills {
						t.Errorf("%d of %s came, and is called lost", n, id)
					}
					note(named, id, n)
				}
			}
		}
	}
	for stream, last := range newest {
		for n := uint64(1); n <= last; n++ {
			if !came[stream][n] && !named[stream][n] {
				t.Errorf("%d of stream %s neither came nor is it named", n, stream)
			}
		}
	}
}

// config configures a reporter that sends to c without a network.
func config(c *center) (eventcenter.Config, *fakeCenter) {
	receiver := &fakeCenter{Handler: c}
	return eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: []string{"https://center/v1/events"}, Cluster: "prod"},
		Node:     "node-1", Boot: "boot-1", Version: "1.2", Transport: receiver,
	}, receiver
}

// kit is a reporter that sends to a center without a network, in a bubble of time.
type kit struct {
	t        *testing.T
	c        *center
	receiver *fakeCenter
	store    *reporttest.Store
	config   eventcenter.Config
	w        *reporttest.World
	r        *eventcenter.Reporter
	stop     func()
}

func bubble(t *testing.T, test func(t *testing.T, k *kit)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &kit{t: t, c: &center{}, store: reporttest.NewStore(), w: reporttest.NewWorld()}
		k.config, k.receiver = config(k.c)
		k.config.Store = k.store
		test(t, k)
	})
}

// start starts the reporter, or another one after it.
func (k *kit) start() {
	k.r = eventcenter.New(k.config)
	k.stop = reporttest.Start(k.t, k.r)
}

// away makes the center unreachable, until its receiver is mended.
func (k *kit) away() { k.receiver.Fail(errors.New("connection refused")) }

// find makes a check find things with these reasons.
func (k *kit) find(reasons ...string) { k.r.Update(k.w.Run("a", nil, reasons...)) }

// check fails the test if something is wrong with what the center received, or is not of the reasons.
func (k *kit) check(reasons ...string) {
	k.t.Helper()
	k.c.check(k.t)
	if got := k.c.lines(event.FaultRaised, event.FaultUpdated); reasons != nil && !slices.Equal(got, reasons) {
		k.t.Errorf("received %q, want %q", got, reasons)
	}
}

// startAgain stops the reporter, and starts another one while the center answers until all has arrived.
func (k *kit) startAgain(reasons ...string) {
	k.t.Helper()
	k.stop()
	k.receiver.Mend()
	k.start()
	time.Sleep(10 * time.Minute)
	k.stop()
	k.check(reasons...)
}

// storm makes a check find things, one of every so many fatal.
func (k *kit) storm(things, every int, reason, message string) {
	observation := finding.Observation{Check: "storm", At: k.w.Now()}
	for i := range things {
		f := reporttest.Fatal("storm", i, reason)
		if f.Message += message; i%every > 0 {
			f.Severity = finding.Info
		}
		observation.Findings = append(observation.Findings, f)
	}
	k.r.Update(k.w.Observe(observation))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
