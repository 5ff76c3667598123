package agent

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/daemonsethang"
	"github.com/nodeagent/nodeagent/pkg/detect/system"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

// newRepairs returns the runner of repairs. It reads the believed state, and makes the engine rerun checks.
func (a *Agent) newRepairs() (*repair.Runner, error) {
	settings := a.cfg.Repair
	settings.SysctlFile = checkkit.SysctlFile
	if s := checks.SettingsOf[system.SysctlsSettings](a.cfg.Checks, "sysctls"); s != nil {
		settings.Sysctls = s.Settings.Want
	}
	if s := checks.SettingsOf[system.KernelModulesSettings](a.cfg.Checks, "kernel-modules"); s != nil {
		settings.Modules = s.Settings.Modules
	}
	if s := checks.SettingsOf[daemonsethang.Settings](a.cfg.Checks, "daemonset-hang"); s != nil {
		for _, watched := range s.Settings.DaemonSets {
			settings.DaemonSets = append(settings.DaemonSets, watched.Name)
		}
	}
	mutator, err := a.clients.openMutator(a.log)
	if err != nil {
		return nil, err
	}
	var pause func(context.Context) (string, error)
	if a.clients.Client != nil { // a machine that is no node has no annotation
		pause = repairsPaused(a.clients.Client, a.cfg.Fleet)
	}
	return repair.New(repair.Options{
		Settings: settings, Releases: a.cfg.Remediate, Host: a.clients.Host, Mutator: mutator, Log: a.log,
		StateDir: a.cfg.StateDir, Paused: pause,
		Observe: func(ctx context.Context, check string) (finding.Observation, error) {
			return a.engine.RunNow(ctx, check)
		},
		Slots:  a.slots(),
		Report: a.reportActivities,
	})
}

// slots returns the fleet's budget for disruptive actions; nil if this agent has none, see repair.Options.
func (a *Agent) slots() fleet.Slots {
	if a.fleet == nil {
		return nil
	}
	return a.fleet
}

// repairsCheck reports that repairs or releases have stopped or are held, or that a repair did not help.
func (a *Agent) repairsCheck() detect.Check {
	return detect.Check{
		ID: "repairs", Domain: "agent", Every: time.Minute,
		Summary: "a repair did not help or is held, or too many repairs or releases have failed and no more are tried",
		Advice: "`nodeagent status` shows past and refused repairs, `nodeagent events` the journal of repairs. " +
			"Repair the fault by hand; if the repair itself is wrong, set its mode to off. `nodeagent clean` works even " +
			"if releases have stopped: once it releases a pod completely, releases continue.",
		Doc: detect.Doc{
			Reads: []string{"the journals of repairs and releases, and the current findings"},
			Why: "A fault that a repair did not cure stays, and the agent does not repeat the repair for ever: from " +
				"then on a person must act.",
			Faults: []detect.Fault{
				{Reason: "RepairDidNotHelp", Severity: finding.Warning, When: "the last repair of a fault that is still " +
					"active has failed, the agent could not tell whether it helped, or another repair undoes it"},
				{Reason: "RepairHeld", Severity: finding.Warning, When: "the kill switch, a pause, other software that works " +
					"on the Node or a missing slot of the fleet budget has held a repair for an hour; the message says who " +
					"can open it, and when"},
				{Reason: "RepairsStopped", Severity: finding.Warning, When: "`repair.stopAfter` repairs (3) have failed " +
					"within a day, or the journal of repairs cannot be read"},
				{Reason: "ReleasesStopped", Severity: finding.Warning, When: "the releases of `remediate.stopAfter` pods (3) " +
					"in a row have failed within a day, or the journal of releases cannot be read"},
			},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			return append(a.repairs.Findings(), a.leftovers.runner.Findings()...), nil
		},
	}
}
