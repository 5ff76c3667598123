package finding

import (
	"maps"
	"slices"
	"time"
)

// Status is the believed state of one check as a whole. Its values correspond to the status of a node condition.
type Status string

// The statuses.
const (
	StatusUnknown       Status = "unknown"        // no conclusive observation yet, or none for too long
	StatusHealthy       Status = "healthy"        // a conclusive observation without fatal findings
	StatusFaulty        Status = "faulty"         // at least one fatal finding is believed
	StatusNotApplicable Status = "not-applicable" // this host has no object of this kind
)

// State is the believed state of all checks, by check. It is plain data: it survives restarts as JSON.
type State map[string]*CheckState

// CheckState is the believed state of one check.
type CheckState struct {
	Status     Status    `json:"status"`
	Since      Timestamp `json:"since"`               // when Status last changed
	Conclusive Timestamp `json:"conclusive,omitzero"` // last conclusive observation
	// first observation of this boot: blindness counts from here
	FirstRun Timestamp `json:"firstLook,omitzero"`
	// why the last observation was inconclusive; empty if it was not
	Err      string                 `json:"err,omitempty"`
	Access   *Access                `json:"access,omitempty"`   // the missing access, if it is the reason
	Why      string                 `json:"why,omitempty"`      // why the check is not applicable
	Subjects map[string]*Believed   `json:"subjects,omitempty"` // by Subject.key: raised and still pending findings
	Flaps    map[string][]Timestamp `json:"flaps,omitempty"`    // by Subject.key: recent raises
}

// Believed is a finding with its history. While Raised is not set, it is only pending.
type Believed struct {
	Finding
	// message of the latest observation; Finding.Message is the reported one
	Latest   string    `json:"latest"`
	ID       string    `json:"id,omitempty"` // stable for one occurrence, set at the raise
	First    Timestamp `json:"first"`        // first observation with it
	Last     Timestamp `json:"last"`         // last observation with it
	Raised   Timestamp `json:"raised,omitzero"`
	Runs     int       `json:"looks"`            // consecutive conclusive observations with it, while pending
	Absent   int       `json:"absent,omitempty"` // consecutive conclusive observations without it, while raised
	AbsentAt Timestamp `json:"absentAt,omitzero"`
}

// UpdateKind is the kind of an update.
type UpdateKind string

// The kinds of updates.
const (
	Raised        UpdateKind = "raised"  // a finding is believed from now on
	Changed       UpdateKind = "changed" // a believed finding has another severity, reason or message
	Cleared       UpdateKind = "cleared" // a believed finding is gone
	StatusChanged UpdateKind = "moved"   // the status of the check changed
)

// Update is one change of the believed state. ID is stable: the same change reported twice carries the same ID.
type Update struct {
	ID      string     `json:"id"`
	Kind    UpdateKind `json:"kind"`
	At      Timestamp  `json:"at"`
	Check   string     `json:"check"`
	Finding Finding    `json:"finding,omitzero"` // all kinds but StatusChanged
	First   Timestamp  `json:"first,omitzero"`   // first observation of the finding
	Since   Timestamp  `json:"since,omitzero"`   // when the finding was raised
	From    Status     `json:"from,omitempty"`   // StatusChanged only
	To      Status     `json:"to,omitempty"`     // StatusChanged only
}

// Raised returns the believed findings of c, the most severe first.
func (c *CheckState) Raised() []Believed {
	var raised []Believed
	for _, b := range c.Subjects {
		if b.IsRaised() {
			raised = append(raised, *b)
		}
	}
	slices.SortFunc(raised, func(a, b Believed) int { return Compare(a.Finding, b.Finding) })
	return raised
}

// IsRaised reports whether b is believed, not just pending.
func (b *Believed) IsRaised() bool { return !b.Raised.IsZero() }

// Checks returns the names of all checks in s, sorted.
func (s State) Checks() []string { return slices.Sorted(maps.Keys(s)) }

// Raised returns all believed findings of s, the most severe first.
func (s State) Raised() []Believed {
	var raised []Believed
	for _, c := range s {
		raised = append(raised, c.Raised()...)
	}
	slices.SortFunc(raised, func(a, b Believed) int { return Compare(a.Finding, b.Finding) })
	return raised
}

// BlindFor returns how long c has been inconclusive, as of now.
func (c *CheckState) BlindFor(now Timestamp) time.Duration {
	if c.Conclusive.Boot == now.Boot {
		return now.Since(c.Conclusive)
	}
	return now.Since(c.FirstRun)
}
