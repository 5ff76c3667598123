package finding

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Observation is the result of one run of one check. It has three outcomes: findings, no findings (conclusive), or an
// error, which makes it inconclusive. Two kinds of error are special: NotApplicableError is conclusive (this host has
// nothing of this kind), and PartialError is conclusive for all subjects except those that it names. Any other error
// next to findings means: these exist, and the absence of others proves nothing.
type Observation struct {
	Check    string
	At       Timestamp
	Findings []Finding
	Err      error
}

// NotApplicableError means that this host has no object for a check to observe, and why.
type NotApplicableError struct {
	Why  string
	Gone bool // no object of the kind exists any more, so neither do its faults
}

func (e *NotApplicableError) Error() string { return "not applicable: " + e.Why }

// NotApplicable returns a NotApplicableError.
func NotApplicable(format string, args ...any) error {
	return &NotApplicableError{Why: fmt.Sprintf(format, args...)}
}

// NoneLeft is NotApplicable for a check that can list all objects of a kind and found none (any more): faults of them
// in the kernel log are over.
func NoneLeft(format string, args ...any) error {
	return &NotApplicableError{Why: fmt.Sprintf(format, args...), Gone: true}
}

// PartialError means that some subjects could not be observed, while all others were.
type PartialError struct{ Subjects map[Subject]error }

func (e *PartialError) Error() string {
	lines := make([]string, 0, len(e.Subjects))
	for subject, err := range e.Subjects {
		lines = append(lines, fmt.Sprintf("%s: %v", subject, err))
	}
	// Sorted so that the same errors give the same text each time.
	return strings.Join(slices.Sorted(slices.Values(lines)), "; ")
}

// Partial returns a PartialError for the subjects in doubt, or nil if there are none.
func Partial(subjects map[Subject]error) error {
	if len(subjects) == 0 {
		return nil
	}
	return &PartialError{Subjects: subjects}
}

// Conclusive reports whether the absence of a finding about subject in l proves that the fault is gone.
func (l Observation) Conclusive(subject Subject) bool {
	if l.Err == nil {
		return true
	}
	if _, ok := errors.AsType[*NotApplicableError](l.Err); ok {
		return true
	}
	partial, ok := errors.AsType[*PartialError](l.Err)
	if !ok {
		return false
	}
	_, doubtful := partial.Subjects[subject]
	return !doubtful
}
