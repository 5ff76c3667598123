package eventcenter_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/eventtest"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// center is a foreign receiver of CloudEvents that also decodes each accepted event as an agent's event.
type center struct {
	eventtest.Receiver
	events []event.Event
}

func newCenter() *center {
	c := &center{}
	c.Take = func(one cloudevents.Event) error {
		data, err := one.MarshalJSON()
		e, undecoded := event.Decode(data)
		if err = errors.Join(err, undecoded, schematest.Problem(data)); err == nil {
			c.events = append(c.events, e)
		}
		return err
	}
	return c
}

func (c *center) received() []event.Event {
	c.Lock()
	defer c.Unlock()
	return slices.Clone(c.events)
}

// data returns the data of one kind among the received events.
func data[Data any](c *center) (all []Data) {
	for _, e := range c.received() {
		if one, ok := e.Data.(Data); ok {
			all = append(all, one)
		}
	}
	return all
}

// lines returns the received events, each once: the reason or message.
func (c *center) lines(types ...event.Type) (lines []string) {
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
	c.Lock()
	defer c.Unlock()
	if len(c.Problems) > 0 {
		t.Error(errors.Join(c.Problems...))
	}
	type change struct {
		stream   string
		sequence uint64
	}
	came, named, newest := map[change]bool{}, map[change]bool{}, map[string]uint64{}
	note := func(all map[change]bool, one change) {
		all[one], newest[one.stream] = true, max(newest[one.stream], one.sequence)
	}
	for _, e := range c.events {
		if e.Type == event.NodeSnapshot || e.Type == event.AgentAlive {
			continue
		}
		note(came, change{e.Stream, e.Sequence})
		gap, _ := e.Data.(event.Gap)
		for _, r := range gap.Ranges {
			var from, to uint64
			fmt.Sscanf(r.From+" "+r.To, "%d %d", &from, &to)
			for n := from; n <= to; n++ {
				one := change{cmp.Or(r.Stream, e.Stream), n}
				// A killed sender does not know whether the events in flight arrived.
				if r.Reason == "lost" && came[one] && !c.Killed {
					t.Errorf("%v came, and is called lost", one)
				}
				note(named, one)
			}
		}
	}
	for stream, last := range newest {
		for n := uint64(1); n <= last; n++ {
			if one := (change{stream, n}); !came[one] && !named[one] {
				t.Errorf("%v neither came nor is it named", one)
			}
		}
	}
}

// fakeCenter answers HTTP requests with a center, without a network.
type fakeCenter struct {
	reporttest.Fault
	*center
}

// RoundTrip implements http.RoundTripper.
func (f *fakeCenter) RoundTrip(request *http.Request) (response *http.Response, err error) {
	err = f.Do(request.Context(), func() error {
		recorder := httptest.NewRecorder()
		f.ServeHTTP(recorder, request)
		response = recorder.Result()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
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

func newKit(t *testing.T) *kit {
	c, store := newCenter(), reporttest.NewStore()
	receiver := &fakeCenter{center: c}
	return &kit{t: t, c: c, receiver: receiver, store: store, w: reporttest.NewWorld(), config: eventcenter.Config{
		Settings: eventcenter.Settings{Endpoints: []string{"https://center/v1/events"}, Cluster: "prod"},
		Node:     "node-1", Boot: "boot-1", Version: "1.2", Transport: receiver, Store: store}}
}

func bubble(t *testing.T, test func(t *testing.T, k *kit)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newKit(t)) })
}

func subtest(t *testing.T, name string, test func(t *testing.T, k *kit)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
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

// end stops the reporter after a time, and checks.
func (k *kit) end(after time.Duration, reasons ...string) {
	k.t.Helper()
	time.Sleep(after)
	k.stop()
	k.check(reasons...)
}

// startAgain stops the reporter, and starts another one while the center answers until all has arrived.
func (k *kit) startAgain(reasons ...string) {
	k.t.Helper()
	k.stop()
	k.receiver.Mend()
	k.start()
	k.end(10*time.Minute, reasons...)
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
