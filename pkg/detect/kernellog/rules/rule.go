// Package rules holds the table of rules for log lines of the kernel and of daemons that report faults. Each rule is
// anchored to the text of the kernel and tested with lines that it must and must not match (rulestest). It is pure. No
// rule trusts text that a program wrote into the log, the name of a program, the product string of a device or the
// prefix of a packet filter's log line.
package rules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Domain groups rules for users.
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

// UntilBoot is the expiry of faults that only a reboot repairs.
const UntilBoot time.Duration = 0

// Rule recognises one fault by its log lines.
type Rule struct {
	ID       string // kebab-case, permanent
	Reason   string // CamelCase, permanent; node-problem-detector's if it has one for the same fault
	Domain   Domain
	Severity finding.Severity
	Summary  string // meaning of a line of this rule, for users
	Advice   string // the next step, with the command; plain text, commands in backquotes

	// Literals are the pre-filter: only a line that contains one of them is compared with the patterns. Unless set, they
	// are texts of which each match of the patterns contains one. A literal that starts with a line break must be at the
	// start of the line; replay takes the first words of the kernel's lines from these.
	Literals []string
	// Words are a condition beside the patterns: a line must contain one of them. None: no condition.
	Words []string
	// Unless are words of harmless lines that otherwise match; for many words they are cheaper than Exclude.
	Unless []string
	// Patterns are RE2; one of them must match from the very start of the kernel's text. The subject is the match of
	// the group "subject", or "subject2"; the other named groups become facts. If a group "cgroup" is in a pod, the pod
	// is the subject.
	Patterns []string
	// Exclude is RE2 and may match anywhere: lines that are harmless although a pattern matches.
	Exclude string

	// Errors is set if the words alone are no proof: the rule then ignores lines below the level of errors, except for
	// warnings with a word of FaultWords and none of Remarks. If the level is unknown, it applies. If the uptime is known, a
	// warning counts only after the first two minutes.
	Errors bool

	// Emitters are the daemons whose lines the rule applies to; empty: the kernel.
	Emitters []Emitter

	// Named is set if the kernel's own line starts with "name[pid]: ", like lines of programs.
	Named bool

	Kind string // of the subject; a rule without a subject group is about the node

	// Raise is how often the rule must match for one subject to raise a finding; the zero Rate means once.
	Raise Rate
	// Escalate is how often it must match for one subject to have EscalateSeverity; with Errors, a line with a word of
	// Dire has it at once.
	Escalate         Rate
	EscalateSeverity finding.Severity
	// Aggregate makes the rates count the matches of all subjects: the third processor that locks up escalates.
	Aggregate bool
	// BootGrace is the time after boot in which the rule does not apply: its lines are part of a normal boot.
	BootGrace time.Duration

	// Report names the kind of report that the line belongs to: lines of one report are one occurrence. A Continuation
	// belongs to the open report and its subject; without an open report it is an occurrence of its own.
	Report       string
	Continuation bool

	// Recovery is RE2 like Patterns, with the same subject groups: the line that it matches reports the end of the
	// fault of the same subject. Empty: no line does.
	Recovery string
	// Expiry is how long the record alone keeps a finding; UntilBoot: as long as the kernel runs.
	Expiry time.Duration
	// ConfirmedBy is the ID of the check that reads the state behind the line: if it can, it raises and clears, and the
	// line only wakes it. Empty if the line is the only evidence.
	ConfirmedBy string
}

// maxWord is the longest word: words are searched in full, literals only by their start.
const maxWord = 20

// Rate is a number of matches within a time.
type Rate struct {
	Count  int           `yaml:"count,omitempty"`
	Within time.Duration `yaml:"within,omitempty"`
}

// NodeKind is the kind of subject of rules about the whole machine.
const NodeKind = "node"

// PodKind is the kind of subject of lines that lead to a pod; its name is the pod's UID in the form used on the node.
const PodKind = "pod"

var (
	IDForm     = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	ReasonForm = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
)

// Problem returns why r is malformed, or nil.
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
	case len(r.Patterns) == 0:
		return fmt.Errorf("rule %s: patterns must be set", r.ID)
	case r.Escalate.Count > 0 && !r.EscalateSeverity.Valid():
		return fmt.Errorf("rule %s: unknown severity of Escalate: %q", r.ID, r.EscalateSeverity)
	case slices.ContainsFunc(slices.Concat(r.Words, r.Unless), func(word string) bool { return len(word) < 3 || len(word) > maxWord }):
		return fmt.Errorf("rule %s: each of its words must have 3 to %d bytes", r.ID, maxWord)
	case r.Continuation && r.Report == "":
		return fmt.Errorf("rule %s: a continuation needs a report", r.ID)
	}
	if i := slices.IndexFunc(r.Literals, func(l string) bool { return len(l) < 3 }); i >= 0 {
		return fmt.Errorf("rule %s: literal %q is too short to be a filter", r.ID, r.Literals[i])
	}
	for _, p := range append(slices.Clone(r.Patterns), r.Recovery) {
		if p != "" && !strings.HasPrefix(p, "^") {
			return fmt.Errorf("rule %s: pattern %q is not anchored", r.ID, p)
		}
	}
	return nil
}

// EmittedBy reports whether a rule applies to lines of emitter.
func (r *Rule) EmittedBy(emitter Emitter) bool {
	if len(r.Emitters) == 0 {
		return emitter == TheKernel
	}
	return slices.Contains(r.Emitters, emitter)
}
