// Package rules is what the kernel and daemons say of faults: one table of rules, each anchored to the words of the
// kernel and tried against lines that it must and must not match (testdata/rules). It is pure: records and their time
// are passed in. It believes nothing that a program wrote into the log, or that a program's name, a device's product
// string or a packet filter's prefix says.
package rules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Domain groups rules for people.
type Domain string

// The domains.
const (
	Storage  Domain = "storage"
	CPU      Domain = "cpu"
	Memory   Domain = "memory"
	Network  Domain = "network"
	Hardware Domain = "hardware"

	Kubernetes Domain = "kubernetes"
	System     Domain = "system"
)

// UntilBoot is the expiry of what only a reboot can make good again.
const UntilBoot time.Duration = 0

// Rule recognises one fault by what the kernel says of it.
type Rule struct {
	ID       string // kebab-case, permanent
	Reason   string // CamelCase, permanent; node-problem-detector's where it has one for the same fault
	Domain   Domain
	Severity finding.Severity
	Summary  string // what a line of this rule means, for people

	// Literals are the pre-filter: a line is only compared with the patterns when it contains one of them.
	Literals []string
	// Patterns are RE2; one of them must match from the very beginning of the kernel's text. The subject is what the
	// group "subject" matched, or "subject2"; the other named groups become facts. A group "cgroup" that lies in a pod
	// makes the pod the subject.
	Patterns []string
	// Exclude is RE2 and may match anywhere: lines that are no fault although a pattern matches.
	Exclude string

	// Speakers are the daemons whose word it must be; empty: the kernel's.
	Emitters []Emitter

	// Named is set where the kernel's own line begins with "name[pid]: ", as the lines of programs do.
	Named bool

	Kind string // of the subject; a rule without a subject group speaks of the node

	// Raise is how often the rule must match for one subject before there is a finding; the zero Rate means once.
	Raise Rate
	// Grave is how often it must match for one subject to be of the severity GraveSeverity.
	Escalate         Rate
	EscalateSeverity finding.Severity
	// Together makes the rates count the matches of all subjects: the third processor that locks up makes it grave.
	Aggregate bool
	// Settled is how long after boot the rule begins to hold: before, the same words are part of a normal start.
	BootGrace time.Duration

	// Report names the kind of report that the line belongs to: lines of one report are one occurrence. A Follower
	// continues the report that is open, and speaks of its subject; alone it stands for itself.
	Report       string
	Continuation bool

	// Recovery recognises the kernel's word that the fault of the same subject is gone.
	Recovery Recovery
	// Expiry is how long the record alone keeps a finding alive; UntilBoot: as long as the kernel runs.
	Expiry time.Duration
	// ConfirmedBy is the ID of the check that reads the state behind the line: it raises and clears where it is there,
	// and the line only wakes it. Empty where there is only the line.
	ConfirmedBy string
}

// Rate is a number of matches within a time.
type Rate struct {
	Count  int
	Within time.Duration
}

// Recovery recognises lines which say that a fault is gone; the zero value recognises nothing. Its pattern names the
// subject as the rule's patterns do.
type Recovery struct {
	Literals []string
	Pattern  string
}

// NodeKind is the kind of subject of rules that speak of the whole machine.
const NodeKind = "node"

// PodKind is the kind of subject of lines that lead to a pod; its name is the pod's UID as the node uses it.
const PodKind = "pod"

var (
	IDForm     = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	ReasonForm = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
)

// Problem returns what is malformed in r, or nil.
func (r Rule) Problem() error {
	switch {
	case !IDForm.MatchString(r.ID):
		return fmt.Errorf("rule %q: the ID is not kebab-case", r.ID)
	case !ReasonForm.MatchString(r.Reason):
		return fmt.Errorf("rule %s: reason %q is not CamelCase", r.ID, r.Reason)
	case !r.Severity.Valid():
		return fmt.Errorf("rule %s: unknown severity %q", r.ID, r.Severity)
	case r.Domain == "" || r.Summary == "" || r.Kind == "":
		return fmt.Errorf("rule %s: domain, summary and kind of subject must be set", r.ID)
	case len(r.Patterns) == 0 || len(r.Literals) == 0:
		return fmt.Errorf("rule %s: patterns and literals must be set", r.ID)
	case r.Escalate.Count > 0 && !r.EscalateSeverity.Valid():
		return fmt.Errorf("rule %s: unknown grave severity %q", r.ID, r.EscalateSeverity)
	case r.Continuation && r.Report == "":
		return fmt.Errorf("rule %s: a follower needs a report", r.ID)
	}
	if i := slices.IndexFunc(r.Literals, func(l string) bool { return len(l) < 3 }); i >= 0 {
		return fmt.Errorf("rule %s: literal %q is too short to sort out anything", r.ID, r.Literals[i])
	}
	for _, p := range append(slices.Clone(r.Patterns), r.Recovery.Pattern) {
		if p != "" && !strings.HasPrefix(p, "^") {
			return fmt.Errorf("rule %s: pattern %q is not anchored", r.ID, p)
		}
	}
	return nil
}

// EmittedBy reports whether a rule is about words of speaker.
func (r *Rule) EmittedBy(speaker Emitter) bool {
	if len(r.Emitters) == 0 {
		return speaker == TheKernel
	}
	return slices.Contains(r.Emitters, speaker)
}
