package checkkit

import (
	"errors"
	"io/fs"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Results collects the findings of one run, and the subjects that could not be read. The zero value is empty.
type Results struct {
	findings []finding.Finding
	doubts   map[finding.Subject]error
}

// Add adds a finding, if there is one.
func (r *Results) Add(f finding.Finding, found bool) {
	if found {
		r.findings = append(r.findings, f)
	}
}

// Doubt records the error of a subject, and reports whether there is one.
func (r *Results) Doubt(subject finding.Subject, err error) bool {
	if err != nil && r.doubts == nil {
		r.doubts = make(map[finding.Subject]error)
	}
	if err != nil {
		r.doubts[subject] = err
	}
	return err != nil
}

// Unread is Doubt for a subject that need not exist: if its file does not, it has neither a finding nor a doubt.
func (r *Results) Unread(subject finding.Subject, err error) bool {
	return errors.Is(err, fs.ErrNotExist) || r.Doubt(subject, err)
}

// Done returns the results of a check's Run.
func (r *Results) Done() ([]finding.Finding, error) { return r.findings, finding.Partial(r.doubts) }
