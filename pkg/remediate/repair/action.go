// Package repair acts on believed findings: it restarts what has died and puts back what was lost. It only decides:
// everything that changes the host is a call of internal/mutate, under the kill switch, the lock, the pause and a journal
// as releases have them (package remediate).
//
// One repair at a time: the check that found the fault runs again and still finds it, the action takes a look and says
// what it would do or why not, the intent is in the journal, the guards are asked once more, one step, its end is in
// the journal. It counts only when the same check does not find the fault any more, and has not for a hold time. A crash
// at any point is harmless: an intent in the journal counts against the budgets whether or not its step was made.
//
// It refuses whatever would end a container, and never tries the same for ever: see plan.
package repair

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate"
)

// Name identifies an action in configuration, journal and documentation. It never changes.
type Name string

// Action is one kind of repair.
type Action struct {
	Name    Name
	Summary string
	Answers []Answer
	// Of reports whether a finding with such a reason is this action's matter; nil: every one is.
	Of func(s Settings, f finding.Finding) bool
	// Disrupts says that pods or the cluster may notice: such an action is off unless it is configured, waits for a
	// maintenance window, and needs a slot of the fleet's budget.
	Disrupts bool
	Once     bool          // for one occurrence of a finding; then a person is asked for help
	After    Name          // only when this action was done for the same occurrence, and has failed
	Every    time.Duration // at most once within this on the node, whatever came of it; 0: no such limit
	Settle   time.Duration // what its cure may take besides the configured time, until it must show
	// PerDay is how often it may be done in a day, besides the budget of all repairs; nil: as often as that permits.
	PerDay func(Settings) int

	// For the documentation.
	Needs []string // guards of its own
	Does  []string // steps
	Never []string

	// Look returns what would be done about a finding. It changes nothing. The error is a mutate.Refusal where the state
	// of the node forbids it; any other error means that this is not known, and nothing is done either.
	Look func(ctx context.Context, t Tools, f finding.Finding) (Job, error)
}

// Answer is a fault that an action may cure.
type Answer struct {
	Check   string
	Reasons []string
}

// Job is one repair that can be done now.
type Job struct {
	Does     string            // for people
	Identity map[string]string // of what it acts on, compared again by package mutate
	// Do makes the change, and returns what came of it.
	Do func(ctx context.Context) (did string, err error)
}

// Tools is what an action uses.
type Tools struct {
	Mutator  *mutate.Mutator
	Host     *host.Host
	Settings Settings
	Log      *slog.Logger

	Releases remediate.Settings // of what deleted pods left behind: their quarantine
	StateDir string             // holds the journal of releases
	// Stopped returns why nothing more may be done: what makes many steps asks it before each.
	Stopped func() string
	images  *imageWatch // kept between looks
	folders systemFolders
}

// Actions lists all actions. Where several could be done, the first is.
func Actions() []Action {
	return []Action{
		restoreLoopback(),
		restoreSysctl(),
		loadModule(),
		resetFailedUnits(),
		freeDiskSpace(),
		restartUnit(),
		reregisterDriver(),
		restartDriver(),
		restartDaemonSetContainer(),
	}
}

// answers reports whether an action may cure a finding.
func (a Action) answers(s Settings, f finding.Finding) bool {
	return (a.Of == nil || a.Of(s, f)) && slices.ContainsFunc(a.Answers, func(answer Answer) bool {
		return answer.Check == f.Check && slices.Contains(answer.Reasons, f.Reason)
	})
}

// notBegun returns an error of what a step asks before its change. Nothing was done: it is no failure, whatever it is.
func notBegun(err error) error {
	if mutate.WasNotBegun(err) {
		return err
	}
	return mutate.NotBegun{Err: err}
}

func refuse(format string, args ...any) error {
	return mutate.Refusal{Why: fmt.Sprintf(format, args...)}
}
