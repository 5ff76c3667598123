package finding

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Observation is the result of one run of one check. It has three outcomes: findings, nothing (conclusive), or an
// error, which means that nothing was learnt. Two kinds of error are special: NotApplicableError is conclusive (there
// is nothing of this kind on this host), and PartialError is conclusive for all subjects but those that it names. Any
// other error beside findings means: these exist, and nothing is known of what is absent.
type Observation struct {
	Check    string
	At       Timestamp
	Findings []Finding
	Err      error
}

// NotApplicableError means that there is nothing on this host for a check to observe, and why.
type NotApplicableError struct {
	Why  string
	Gone bool // nothing of the kind exists any more, nor do its faults
}

func (e *NotApplicableError) Error() string { return "not applicable: " + e.Why }

// NotApplicable returns a NotApplicableError.
func NotApplicable(format string, args ...any) error {
	return &NotApplicableError{Why: fmt.Sprintf(format, args...)}
}

// NoneLeft is NotApplicable of a check that can list everything of a kind and found nothing (any more): what the kernel
// has logged about one is over.
func NoneLeft(format string, args ...any) error {
	return &NotApplicableError{Why: fmt.Sprintf(format, args...), Gone: true}
}

// PartialError means that nothing could be learnt about some subjects, while all others were observed.
type PartialError struct{ Subjects map[Subject]error }

func (e *PartialError) Error() string {
	lines := make([]string, 0, len(e.Subjects))
	for subject, err := range e.Subjects {
		lines = append(lines, fmt.Sprintf("%s: %v", subject, err))
	}
	// Sorted so that the same trouble is the same text each time.
	return strings.Join(slices.Sorted(slices.Values(lines)), "; ")
}

// Partial returns nil when there are no subjects in doubt, otherwise a PartialError.
func Partial(subjects map[Subject]error) error {
	if len(subjects) == 0 {
		return nil
	}
	return &PartialError{Subjects: subjects}
}

// Conclusive reports whether the absence of a finding about subject in l proves that it is gone.
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
