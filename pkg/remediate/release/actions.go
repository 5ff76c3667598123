package release

import (
	"slices"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Actions lists all actions in the order in which leftovers of one pod are released: first the runtime's objects; CNI
// plugins take down the network before its namespace is removed; volumes go before cgroups, so that their memory is not
// charged to the parent; the directory and the logs are last.
func Actions() []Action {
	all := []Action{
		sandboxAction(),
		containerAction(),
		containerdContainerAction(),
		processAction(),
		shimAction(),
		rootfsAction(),
		attachmentAction(),
		netnsAction(),
		linkAction(),
		ipamLeaseAction(),
		leaseAction(),
		sandboxDirectoryAction(),
		mountAction(),
		cgroupAction(),
		podDirectoryAction(),
		systemdUnitAction(),
		podLogsAction(),
	}
	for i := range all {
		all[i] = onlyIdentified(all[i])
	}
	return all
}

// actions holds at most one action for each kind.
type actions []Action

func (all actions) on(kind object.Kind) (Action, bool) {
	at := slices.IndexFunc(all, func(a Action) bool { return a.Kind == kind })
	if at < 0 {
		return Action{}, false
	}
	return all[at], true
}

func actionFor(kind object.Kind) (Action, bool) { return actions(Actions()).on(kind) }
