package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
)

// sinkMonitor keeps the status of each sink for "nodeagent status", and passes each observation on.
type sinkMonitor struct {
	report.Observer

	mu    sync.Mutex // guards sinks
	sinks map[string]*status.SinkStatus
}

func newSinkMonitor(next report.Observer) *sinkMonitor {
	return &sinkMonitor{Observer: next, sinks: map[string]*status.SinkStatus{}}
}

func (t *sinkMonitor) of(reporter string) *status.SinkStatus {
	if t.sinks[reporter] == nil {
		t.sinks[reporter] = &status.SinkStatus{Reporter: reporter}
	}
	return t.sinks[reporter]
}

// Wrote records one attempt.
func (t *sinkMonitor) Wrote(reporter, result string, err error) {
	t.Observer.Wrote(reporter, result, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	sink := t.of(reporter)
	if result == report.ResultOK {
		sink.Last, sink.Failing, sink.Why = time.Now(), time.Time{}, ""
		return
	}
	if sink.Failing.IsZero() {
		sink.Failing = time.Now()
	}
	if err != nil {
		sink.Why = err.Error()
	}
}

// Queued records the length of a queue.
func (t *sinkMonitor) Queued(reporter string, length int) {
	t.Observer.Queued(reporter, length)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(reporter).Waiting = length
}

// Dropped records dropped entries.
func (t *sinkMonitor) Dropped(reporter string, severity finding.Severity, n int) {
	t.Observer.Dropped(reporter, severity, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(reporter).Dropped += n
}

// all returns the status of the sinks of reporters.
func (t *sinkMonitor) all(reporters []report.Reporter) []status.SinkStatus {
	stats, seen := make(map[string]eventcenter.Stats), map[string]status.Seen{}
	for _, r := range reporters { // before the lock: a reporter calls the monitor while it holds its own lock
		if center, ok := r.(*eventcenter.Reporter); ok {
			stats[r.Name()] = center.Stats()
		}
		if sink, ok := r.(report.NodeReporter); ok {
			at, shows := sink.Seen()
			seen[r.Name()] = status.Seen{At: at, Shows: shows}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sinks := []status.SinkStatus{}
	for _, r := range reporters {
		sink := status.SinkStatus{Reporter: r.Name()}
		if known := t.sinks[r.Name()]; known != nil {
			sink = *known
		} else if !slices.Contains([]string{"condition", "configmap", "event", "eventcenter"}, r.Name()) {
			continue
		}
		if center, ok := stats[r.Name()]; ok {
			sink.Endpoint, sink.Quarantined = center.Endpoint, center.Quarantined
		}
		if there := seen[r.Name()]; !there.At.IsZero() {
			sink.Seen = &there
		}
		sinks = append(sinks, sink)
	}
	return sinks
}

// failing returns since when a sink fails, and why; zero while it does not.
func (t *sinkMonitor) failing(reporter string) (since time.Time, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(reporter).Failing, t.of(reporter).Why
}
