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

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

// Wrote does nothing.
func (Unobserved) Wrote(string, string, error) {}

// Queued does nothing.
func (Unobserved) Queued(string, int) {}

// Dropped does nothing.
func (Unobserved) Dropped(string, finding.Severity, int) {}
