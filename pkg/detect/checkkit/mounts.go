package checkkit

import (
	"maps"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
	maps.DeleteFunc(r.doubts, func(s finding.Subject, _ error) bool { return !mounted[s.Name] })
}
