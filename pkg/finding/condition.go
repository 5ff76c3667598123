package finding

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
