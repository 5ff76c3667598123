package checkkit

import (
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// OfMounts is finding.Partial for a check of mounts whose table was known only in part (cut is not nil). Until a table
// was read to its end, that a mount is not found proves nothing: the whole observation is then inconclusive, and its
// findings hold all the same.
func OfMounts(doubts map[finding.Subject]error, cut *mountinfo.CutError) error {
	switch {
	case cut == nil:
	case cut.First:
		return cut
	default:
		if doubts == nil {
			doubts = make(map[finding.Subject]error)
		}
		doubts[finding.Subject{Kind: "mount-table", Name: "host"}] = cut
	}
	return finding.Partial(doubts)
}
