package finding

// ActivityKind is a transition of a leftover, or of an action on it.
type ActivityKind string

// The kinds of activities.
const (
	LeftoverFound ActivityKind = "leftover-found" // proven to be a leftover
	// once after each start: found by an earlier run, and still present
	LeftoverPresent  ActivityKind = "leftover-present"
	LeftoverReleased ActivityKind = "leftover-released" // an action of the agent released it
	LeftoverGone     ActivityKind = "leftover-gone"     // gone, or in use again, without an action of the agent

	ActionPlanned  ActivityKind = "action-planned"  // would be done, or will be when budget and guards permit it
	ActionRefused  ActivityKind = "action-refused"  // the object, or a guard right before a step, forbids it
	ActionStarted  ActivityKind = "action-started"  // the intent is in the journal
	ActionDone     ActivityKind = "action-done"     // one object is released: it no longer exists
	ActionFailed   ActivityKind = "action-failed"   // tried, but not released or not proven to be
	ActionVerified ActivityKind = "action-verified" // after the last step, a pass over the node found it clean
)

// Activity is one transition of a leftover, or of an action on leftovers. Actions are reported for each object and,
// with Subject equal to Pod, for the release of a pod as a whole; only the latter is ever ActionVerified. Its JSON form
// is a contract.
type Activity struct {
	ID       string       `json:"id"` // stable: the same transition reported twice carries the same ID
	Kind     ActivityKind `json:"kind"`
	At       Timestamp    `json:"at"`
	Check    string       `json:"check"`    // the check that finds such leftovers
	Subject  Subject      `json:"subject"`  // a leftover: its kind, its ID in that kind, and the UID of its pod; or Pod
	Pod      Subject      `json:"pod"`      // the pod that left it behind: kind "pod", "namespace/name" if known
	Severity Severity     `json:"severity"` // never Fatal
	Message  string       `json:"message"`
	Since    Timestamp    `json:"since,omitzero"`    // leftovers only: when it was found
	Repeated bool         `json:"repeated,omitzero"` // actions only: the previous attempt ended the same way
}

// NewActivity returns an activity whose ID is derived from the arguments.
func NewActivity(kind ActivityKind, check string, subject Subject, at Timestamp) Activity {
	id := Key{Check: check, Subject: subject}.id(at) + "-" + string(kind)
	return Activity{ID: id, Kind: kind, At: at, Check: check, Subject: subject, Severity: Info}
}
