package checkkit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
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

// DoneWithMounts is Done for a check of mounts, whose table was known only in part if cut is not nil. Until a table was
// read to its end, that a mount is not found proves nothing: the whole observation is then inconclusive, and its
// findings hold all the same.
func (r *Results) DoneWithMounts(h *host.Host, cut *mountinfo.CutError) ([]finding.Finding, error) {
	r.forgetUnmounted(h)
	switch {
	case cut == nil:
	case cut.First:
		return r.findings, cut
	default:
		r.Doubt(finding.Subject{Kind: "mount-table", Name: "host"}, cut)
	}
	return r.Done()
}

// forgetUnmounted deletes doubts about filesystems that were unmounted between the reading of the mount table and the
// probe, which is frequent on a busy node.
func (r *Results) forgetUnmounted(h *host.Host) {
	if len(r.doubts) == 0 {
		return
	}
	mounts, err := mount.Visible(mount.Recent(h))
	if err != nil {
		return // the doubts remain
	}
	mounted := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		mounted[m.Point] = true
	}
	maps.DeleteFunc(r.doubts, func(s finding.Subject, _ error) bool { return s.Kind == "filesystem" && !mounted[s.Name] })
}
