package agent

import (
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// sinkMonitor remembers how telling goes, for "nodeagent status", and passes it on.
type sinkMonitor struct {
	report.Observer

	mu   sync.Mutex // guards told
	told map[string]*status.SinkStatus
}

func newSinkMonitor(next report.Observer) *sinkMonitor {
	return &sinkMonitor{Observer: next, told: map[string]*status.SinkStatus{}}
}

func (t *sinkMonitor) of(reporter string) *status.SinkStatus {
	if t.told[reporter] == nil {
		t.told[reporter] = &status.SinkStatus{Reporter: reporter}
	}
	return t.told[reporter]
}

// Wrote notes one attempt.
func (t *sinkMonitor) Wrote(reporter, result string, err error) {
	t.Observer.Wrote(reporter, result, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	told := t.of(reporter)
	if result == report.ResultOK {
		told.Last, told.Failing, told.Why = time.Now(), time.Time{}, ""
		return
	}
	if told.Failing.IsZero() {
		told.Failing = time.Now()
	}
	if err != nil {
		told.Why = err.Error()
	}
}

// Queued notes how much waits.
func (t *sinkMonitor) Queued(reporter string, length int) {
	t.Observer.Queued(reporter, length)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(reporter).Waiting = length
}

// Dropped notes what was given up.
func (t *sinkMonitor) Dropped(reporter string, severity finding.Severity, n int) {
	t.Observer.Dropped(reporter, severity, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(reporter).Dropped += n
}

// all returns how telling goes, for the reporters that there are.
func (t *sinkMonitor) all(reporters []report.Reporter) []status.SinkStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := []status.SinkStatus{}
	for _, r := range reporters {
		if known := t.told[r.Name()]; known != nil {
			told = append(told, *known)
		} else if r.Name() == "condition" || r.Name() == "event" {
			told = append(told, status.SinkStatus{Reporter: r.Name()})
		}
	}
	return told
}
