// Package finding holds the types that all parts of the agent share: a fault (Finding), one run of a check
// (Observation), the state believed after many of them (Tracker), its changes (Update), and the transitions of
// leftovers (Activity). It is pure: it reads no clock, no file and no socket, and imports no package of the agent.
package finding

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Severity is the meaning of a finding for the node.
type Severity string

// The severities, the most severe first.
const (
	Fatal   Severity = "fatal"   // the node cannot serve pods; becomes a node condition
	Warning Severity = "warning" // something fails, but pods can still be served
	Info    Severity = "info"    // worth knowing
)

// Valid reports whether s is one of the three severities.
func (s Severity) Valid() bool { return s == Fatal || s == Warning || s == Info }

// AtLeast reports whether s is as severe as other, or more. Severities are words: never compare them as such.
func (s Severity) AtLeast(other Severity) bool { return s.Valid() && s.rank() <= other.rank() }

// Compare orders severities, the most severe first.
func (s Severity) Compare(other Severity) int { return s.rank() - other.rank() }

// rank orders severities: the most severe has the smallest rank.
func (s Severity) rank() int { return slices.Index([]Severity{Fatal, Warning, Info}, s) }

// Subject is the one thing that a finding is about. Kind is a noun in lower case ("filesystem", "csi-driver", "node");
// UID is set if the kind has one unique in time (a pod's UID).
type Subject struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	UID  string `json:"uid"`
}

func (s Subject) String() string { return s.Kind + "/" + s.Name }

// key is unambiguous because neither a kind nor a UID contains a slash.
func (s Subject) key() string { return s.Kind + "/" + s.Name + "/" + s.UID }

// Finding is one thing wrong with one subject, as one run of a check found it. A check reports at most one finding for
// a subject: the most severe. Reason is CamelCase and stable, Message is for people, Facts are for machines.
type Finding struct {
	Check    string            `json:"check"`
	Subject  Subject           `json:"subject"`
	Severity Severity          `json:"severity"`
	Reason   string            `json:"reason"`
	Message  string            `json:"message"`
	Facts    map[string]string `json:"facts"`

	// SuggestedAction is an action for others, outside of the node; empty if there is none. Part names the part to
	// replace, with its serial number if that can be read.
	SuggestedAction SuggestedAction `json:"suggestedAction,omitempty"`
	Part            string          `json:"part,omitempty"`

	// OneShot marks an event that is over at once: its raise is reported, but never a clear.
	OneShot bool `json:"moment,omitempty"`
	// RepublishMessage marks a finding whose changed message is reported; a changed reason always is.
	RepublishMessage bool `json:"retold,omitempty"`

	// BelowRaise marks a value between the clearing and the raising threshold: it keeps a raised finding, but never
	// raises one. This gives thresholds their hysteresis.
	BelowRaise bool `json:"-"`
	// Certain marks a fault that one observation proves: it is raised at once, whatever the policy.
	Certain bool `json:"-"`
}

// Key identifies a finding across observations: the same check and subject. The reason may change.
type Key struct {
	Check   string
	Subject Subject
}

// Key returns the identity of f across observations.
func (f Finding) Key() Key { return Key{f.Check, f.Subject} }

// Compare orders findings for display: the most severe first, then by check and subject.
func Compare(a, b Finding) int {
	return cmp.Or(
		cmp.Compare(a.Severity.rank(), b.Severity.rank()),
		cmp.Compare(a.Check, b.Check),
		cmp.Compare(a.Subject.Kind, b.Subject.Kind),
		cmp.Compare(a.Subject.Name, b.Subject.Name),
		cmp.Compare(a.Subject.UID, b.Subject.UID),
	)
}

// id is the stable identity of one occurrence of a finding: the same fault found again after it was cleared gets
// another.
func (k Key) id(since Timestamp) string {
	text := strings.Join([]string{k.Check, k.Subject.Kind, k.Subject.Name, k.Subject.UID, since.Boot,
		since.SinceBoot.String()}, "\x00")
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Problem returns how f is malformed, or nil. A malformed finding is a bug of the check and is ignored.
func (f Finding) Problem() error {
	switch {
	case f.Check == "" || f.Subject.Kind == "" || f.Reason == "":
		return fmt.Errorf("finding %q of %s: check, subject kind and reason must be set", f.Reason, f.Subject)
	case !f.Severity.Valid():
		return fmt.Errorf("finding %s of %s: unknown severity %q", f.Reason, f.Subject, f.Severity)
	}
	return nil
}
