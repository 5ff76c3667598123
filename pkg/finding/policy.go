package finding

import "time"

// Policy says when a check's findings are raised and cleared. The zero value raises on the first observation, and
// clears on the first conclusive one without the finding.
type Policy struct {
	Raise Hold // a finding must be observed this long before it is raised
	Clear Hold // and be absent this long before it is cleared

	// BlindAfter is how long a check may be inconclusive before its condition is Unknown. Zero means DefaultBlindAfter.
	BlindAfter time.Duration
}

// Hold is a minimum duration: at least Runs consecutive observations that span at least For. Zero means one
// observation.
type Hold struct {
	Runs int
	For  time.Duration
}

// DefaultBlindAfter is how long a check may be inconclusive before that is reported.
const DefaultBlindAfter = 5 * time.Minute

// Condition is how a check appears in the Node's status. Type is true when something is wrong, as in
// node-problem-detector; ReadyType has the opposite meaning (true when the node is healthy). Several checks may share a
// type.
type Condition struct {
	Type           string
	ReadyType      string
	HealthyReason  string
	HealthyMessage string
}

// Wording words the findings of a check in events like node-problem-detector: under the name of their source, and a
// fatal one as a change of its condition, if it has one.
type Wording struct {
	Source    string
	Condition Condition
}
