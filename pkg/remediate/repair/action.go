// Package repair acts on believed findings: it restarts dead services and restores lost settings. It only decides;
// every change of the host is a call of internal/mutate, under the same kill switch, lock, pause and journal as
// releases (package remediate).
//
// One repair runs at a time. The check that found the fault runs again and must still find it; the action looks at the
// node and says what it would do, or why not; the intent is journaled; the guards are asked again; the step runs; its
// end is journaled. A repair counts only if the same check stops finding the fault and stays clear for a hold time. A
// crash at any point is harmless: a journaled intent counts against the budgets whether or not its step ran.
//
// It ends no container except the one that an action restarts, and limits retries: see plan.
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
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Name identifies an action in configuration, journal and documentation. It never changes.
type Name string

// Action is one kind of repair.
type Action struct {
	Name    Name
	Summary string
	Answers []Answer
	// Of reports whether the action handles a finding with such a reason. Nil: it handles all.
	Of func(s Settings, f finding.Finding) bool
	// Disrupts marks an action that pods or the cluster may notice. It is off unless configured, waits for a
	// maintenance window, and needs a slot of the fleet's budget.
	Disrupts bool
	Once     bool          // for one occurrence of a finding; then a person is asked for help
	After    Name          // only after this action was done for the same occurrence and failed
	Every    time.Duration // at most once within this on the node, whatever the result; 0: no such limit
	Settle   time.Duration // extra time, besides the configured one, until its effect must show
	// PerDay is a daily limit besides the budget of all repairs; nil: no further limit.
	PerDay func(Settings) int

	// For the documentation.
	Needs []string // guards of its own
	Does  []string // steps
	Never []string

	// Examine returns the job for a finding. It changes no state. The error is a mutate.Refusal if the state of the node
	// forbids the job; any other error means "not known". In both cases the action does not run.
	Examine func(ctx context.Context, t Tools, f finding.Finding) (Job, error)
}

// Answer is a fault that an action may cure.
type Answer struct {
	Check   string
	Reasons []string
}

// Job is one repair that can be done now.
type Job struct {
	Does     string            // for people
	Identity map[string]string // of its target, compared again by package mutate
	// Do makes the change and returns its result.
	Do func(ctx context.Context) (did string, err error)
}

// Tools is what an action uses.
type Tools struct {
	Mutator  *mutate.Mutator
	Host     *host.Host
	Settings Settings
	Log      *slog.Logger

	Releases release.Settings // for the quarantine of what deleted pods left behind
	StateDir string           // holds the journal of releases
	// Stopped returns why the action must stop, or "". An action with many steps asks before each.
	Stopped func() string
	images  *imageWatch // kept between looks
	dumps   *dumpWatch  // the same
	folders systemFolders
}

// Actions lists all actions. If several apply, the first one runs.
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

// answers reports whether the action may cure a finding.
func (a Action) answers(s Settings, f finding.Finding) bool {
	return (a.Of == nil || a.Of(s, f)) && slices.ContainsFunc(a.Answers, func(answer Answer) bool {
		return answer.Check == f.Check && slices.Contains(answer.Reasons, f.Reason)
	})
}

// notBegun marks an error from before the step's change. It does not count as a failure.
func notBegun(err error) error {
	if mutate.WasNotBegun(err) {
		return err
	}
	return mutate.NotBegun{Err: err}
}

func refuse(format string, args ...any) error {
	return mutate.Refusal{Why: fmt.Sprintf(format, args...)}
}
