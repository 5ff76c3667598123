package report

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Observer observes the sinks; the metrics are one.
type Observer interface {
	// Wrote reports one attempt to write: "ok", "error" (it will be tried again) or "rejected" (it will not), and
	// why not.
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
