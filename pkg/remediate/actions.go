package remediate

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Actions lists all actions in the order in which leftovers of one pod are released: what the runtime can do comes
// first; the network is taken down by its plugins before its namespace goes; volumes go before cgroups, so that what
// they hold in memory is not charged to the parent; the directory is last.
func Actions() []Action {
	return []Action{
		sandboxAction(),
		containerAction(),
		processAction(),
		attachmentAction(),
		netnsAction(),
		linkAction(),
		leaseAction(),
		mountAction(),
		cgroupAction(),
		podDirectoryAction(),
	}
}

// actions are the ways to release, one for each kind.
type actions []Action

func (all actions) on(kind inspect.Kind) (Action, bool) {
	at := slices.IndexFunc(all, func(a Action) bool { return a.Kind == kind })
	if at < 0 {
		return Action{}, false
	}
	return all[at], true
}

func actionFor(kind inspect.Kind) (Action, bool) { return actions(Actions()).on(kind) }
