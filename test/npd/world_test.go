package npd

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	npdtypes "k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/event"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	remove := ownedtest.Temp()
	code := m.Run()
	remove()
	os.Exit(code)
}

// answer holds the reports of a monitor: its events, sorted, and its conditions at the end.
type answer struct {
	Events     []string // source, type, reason, message
	Conditions []string // type, status, reason, message
}

// oneLine returns a text as the agent reports it: with blanks where node-problem-detector has newlines, quoted or not.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, `\n`, " ")), " ")
}

// they runs a monitor of node-problem-detector until enough is true, and then until it is silent for a while.
func they(t *testing.T, monitor npdtypes.Monitor, do func(), enough func(answer) bool) answer {
	t.Helper()
	statuses, err := monitor.Start()
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	do()
	for silent, end := time.Now(), time.Now().Add(time.Minute); ; {
		select {
		case s := <-statuses:
			before := answer{slices.Clone(a.Events), a.Conditions}
			if a.take(s); !cmp.Equal(before, a) {
				silent = time.Now()
			}
			continue
		case <-time.After(100 * time.Millisecond):
		}
		if time.Since(silent) > 2*time.Second && enough(a) || time.Now().After(end) {
			break
		}
	}
	monitor.Stop()
	slices.Sort(a.Events)
	return a
}

func (a *answer) take(s *npdtypes.Status) {
	for _, e := range s.Events {
		kind := corev1.EventTypeNormal
		if e.Severity == npdtypes.Warn {
			kind = corev1.EventTypeWarning
		}
		a.Events = append(a.Events, oneLine(fmt.Sprintf("%s %s %s %s", s.Source, kind, e.Reason, e.Message)))
	}
	a.Conditions = nil
	for _, c := range s.Conditions {
		a.Conditions = append(a.Conditions, oneLine(fmt.Sprintf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message)))
	}
}

// sink takes events.
type sink struct {
	mu     sync.Mutex
	events []*corev1.Event
}

func (s *sink) CreateEvent(_ context.Context, e *corev1.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return nil
}

// world is the part of the agent that runs such files: the engine, the tracker, the texts of events and conditions.
type world struct {
	t        *testing.T
	monitors *npd.Monitors
	tracker  *finding.Tracker
	mu       sync.Mutex
	sink     *sink
	reporter *event.Reporter
	stop     func()
}

// clock counts from a boot an hour ago.
func clock(began time.Time) func() finding.Timestamp {
	return func() finding.Timestamp {
		now := time.Now()
		return finding.Timestamp{Wall: now.Round(0), Boot: "boot", SinceBoot: time.Hour + now.Sub(began)}
	}
}

// we runs a file in the agent. Within a bubble of synctest its time passes at once.
func we(t *testing.T, file npd.File, settings npd.Settings) *world {
	t.Helper()
	h := &host.Host{NodeName: "node", Paths: host.Paths{InitPID: os.Getpid()}, Clock: clock(time.Now())}
	w := &world{t: t, sink: &sink{}}
	w.monitors = npd.New([]npd.File{file}, nil, settings, npd.Deps{Host: h})
	policies := map[string]finding.Policy{}
	for _, c := range w.monitors.Checks() {
		policies[c.ID] = c.Policy
	}
	w.tracker = finding.NewTracker(policies, nil)
	w.reporter = event.New(event.Config{Node: "node", Sink: w.sink, Wordings: w.monitors.Wordings(), Burst: 1000, Resend: -1})
	engine := detect.NewEngine(h, klogless(), w.monitors.Checks(), w.monitors.Sources(), detect.Observer{},
		func(l finding.Observation) {
			w.mu.Lock()
			defer w.mu.Unlock()
			updates := w.tracker.Observe(l)
			w.reporter.Update(w.tracker.State(), updates)
		})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = engine.Run(ctx) })
	running.Go(func() { _ = w.reporter.Run(ctx) })
	w.stop = func() { cancel(); running.Wait() }
	return w
}

// answer waits until all is reported.
func (w *world) answer() answer {
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	return w.reported()
}

// reported ends the agent and returns what it has reported.
func (w *world) reported() answer {
	w.stop()
	return w.now()
}

// now returns the reports so far.
func (w *world) now() answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	var a answer
	for _, e := range w.sink.events {
		a.Events = append(a.Events, oneLine(fmt.Sprintf("%s %s %s %s", e.Source.Component, e.Type, e.Reason,
			e.Message)))
	}
	slices.Sort(a.Events)
	seen := map[string]bool{}
	for _, c := range w.monitors.Checks() {
		if name := c.Condition.Type; name != "" && !seen[name] {
			seen[name] = true
			v := report.Evaluate(c.Condition, w.tracker.State()[c.ID])
			a.Conditions = append(a.Conditions,
				oneLine(fmt.Sprintf("%s %s %s %s", name, truth(v.Status), v.Reason, v.Message)))
		}
	}
	return a
}

func truth(s finding.Status) string {
	switch s {
	case finding.StatusFaulty:
		return "True"
	case finding.StatusHealthy:
		return "False"
	}
	return "Unknown"
}
