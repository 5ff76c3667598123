package finding

// Condition is how a check shows in the Node's status. Type is true when something is wrong, as node-problem-detector
// words it; ReadyType is the opposite vocabulary (true when the node is healthy). Several checks may share a type.
type Condition struct {
	Type           string
	ReadyType      string
	HealthyReason  string
	HealthyMessage string
}
