package checkkit

import (
	"errors"
	"fmt"
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

// Settle adds a finding that is certain, whatever else about its subject could not be read.
func (r *Results) Settle(f finding.Finding) {
	delete(r.doubts, f.Subject)
	r.findings = append(r.findings, f)
}

// Take records what became of a subject: an error, a finding, or neither.
func (r *Results) Take(subject finding.Subject, f *finding.Finding, err error) {
	if !r.Doubt(subject, err) && f != nil {
		r.findings = append(r.findings, *f)
	}
}

// Empty reports whether there is neither a finding nor a doubt.
func (r *Results) Empty() bool { return len(r.findings)+len(r.doubts) == 0 }

// Inconclusive is Done for a run that did not see everything for the reason err. The doubts are in its text only: a
// PartialError inside it would mean that everything else was read.
func (r *Results) Inconclusive(err error) ([]finding.Finding, error) {
	if doubts := finding.Partial(r.doubts); doubts != nil {
		err = fmt.Errorf("%w; %v", err, doubts) //nolint:errorlint // in words only
	}
	return r.findings, err
}

// Done returns the results of a check's Run.
func (r *Results) Done() ([]finding.Finding, error) { return r.findings, finding.Partial(r.doubts) }
