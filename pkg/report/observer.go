package report

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Observer observes the sinks; the metrics are an Observer.
type Observer interface {
	// Wrote reports one attempt to write: "ok", "error" (to be retried) or "rejected" (final), with the error.
	Wrote(reporter, result string, err error)
	// Queued reports how many updates wait for a sink.
	Queued(reporter string, length int)
	// Dropped reports that n updates were dropped because too many waited.
	Dropped(reporter string, severity finding.Severity, n int)
}

// The results of a write.
const (
	ResultOK       = "ok"
	ResultError    = "error"
	ResultRejected = "rejected"
)

// Unobserved is an Observer without effect.
type Unobserved struct{}

// Wrote implements Observer.
func (Unobserved) Wrote(string, string, error) {}

// Queued implements Observer.
func (Unobserved) Queued(string, int) {}

// Dropped implements Observer.
func (Unobserved) Dropped(string, finding.Severity, int) {}
