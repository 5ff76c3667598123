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
