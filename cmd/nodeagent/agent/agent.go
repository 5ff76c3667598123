// Package agent wires checks, inspections, releases and reporters together. Package daemon manages the life of the
// process that runs it; package status answers queries about it.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/podevidence"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// Version is the version of the build, set by the linker.
var Version = "dev"

// Options are the parts of an agent. The caller owns Clients and Store and closes them.
type Options struct {
	Config   config.Config
	Monitors config.Monitors // the files of node-problem-detector that the configuration names
	Log      *slog.Logger
	Clients  *Clients
	Store    *store.Store
	Manager  *notify.Manager // of services
	Checks   []detect.Check  // of the daemon itself
	Refused  func() error    // returns why the configuration that the operator wants is not in force, or nil
}

// Agent runs everything for one configuration.
type Agent struct {
	Progress   *notify.Progress
	Components []Component // in start order

	cfg       config.Config
	files     config.Monitors
	log       *slog.Logger
	clients   *Clients
	store     *store.Store
	saver     *stateWriter
	checks    []detect.Check
	deps      checks.Deps
	reporters []report.Reporter
	leftovers *leftovers
	fleet     *fleet.Fleet          // nil where there is no apiserver
	taint     *taint.Reporter       // nil where there is none, or no taint
	evidence  *podevidence.Follower // nil without an event center or an apiserver
	repairs   *repair.Runner
	monitors  *npd.Monitors // of node-problem-detector
	meter     *metrics.Metrics
	sources   []detect.Source
	sinks     *sinkMonitor
	engine    *detect.Engine
	started   finding.Timestamp

	mu       sync.Mutex // guards the fields below
	tracker  *finding.Tracker
	reported finding.Timestamp // the last state given to the reporters
}

// Component is a part that runs until ctx ends and leaves nothing behind.
type Component struct {
	Name string
	Run  func(ctx context.Context) error
}

// New builds an agent. It continues from the stored state, as after a restart.
func New(o Options) (*Agent, error) {
	cfg, log := o.Config, o.Log
	a := &Agent{cfg: cfg, files: o.Monitors, log: log, clients: o.Clients, store: o.Store,
		saver: newSaver(o.Store, log), started: host.Now()}
	left, err := newLeftovers(cfg, log, o.Clients, o.Store, a.stateStore())
	if err != nil {
		return nil, err
	}
	a.leftovers = left
	if a.deps, err = a.loadDeps(); err != nil {
		return nil, err
	}
	own := checks.Checks(cfg.Checks, a.deps)
	a.deps.Sources.Enable(own)
	a.monitors = a.openMonitors(own)
	if o.Clients.Client != nil {
		a.fleet = newFleet(cfg.Fleet, o.Clients.Client, ownNamespace(cfg), cfg.Report.Taint.Key,
			o.Store.Bucket("fleet"), log)
	}
	a.checks = slices.Concat(own, a.monitors.Checks(), plugin.Checks(cfg.Plugins), a.ownChecks(), o.Checks)
	a.Progress = notify.NewProgress(limits(a.checks))

	state, err := o.Store.LoadState()
	if err != nil {
		log.Error("load part of the stored state failed", "err", err)
	}
	a.tracker = finding.NewTracker(policies(a.checks), state)

	metered := a.openReporters()
	a.reporters = append(a.reporters,
		&serviceStatus{manager: o.Manager, checks: a.checks, changed: make(chan struct{}, 1)})
	left.activity.send = a.reportActivities
	if a.repairs, err = a.newRepairs(); err != nil {
		return nil, err
	}
	a.reporters = append(a.reporters, a.repairs)
	a.sources = append(sources(a.clients.Host, log, metered, a.deps.KernelLog, a.monitors), a.monitors.Sources()...)
	a.engine = detect.NewEngine(a.clients.Host, log, a.checks, a.sources,
		detect.Observer{Ran: metered.Ran, Abandoned: metered.Abandoned}, a.observe)
	a.Components = []Component{{"saver", a.saver.Run}, {"release", left.Run}}
	for _, r := range a.reporters {
		a.Components = append(a.Components, Component{r.Name(), r.Run})
	}
	if cfg.Report.Metrics.Enabled {
		a.Components = append(a.Components, Component{"metrics", serveMetrics(metered, cfg.Report.Metrics.Listen,
			health{a.Progress, o.Refused})})
	}
	if o.Clients.Client != nil {
		a.Components = append(a.Components, Component{"pod watch", o.Clients.Client.WatchPods},
			Component{"node watch", a.watchNode})
	}
	if a.evidence != nil {
		a.Components = append(a.Components, Component{"pod evidence", a.evidence.Run})
	}
	a.forgetRemoved(state)
	still := a.tracker.State() // what was believed a moment ago; from before this boot it proves nothing
	maps.DeleteFunc(still, func(_ string, c *finding.CheckState) bool { return c.FirstRun.Boot != a.started.Boot })
	a.report(still, nil)
	a.Components = append(a.Components, Component{"engine", a.engine.Run})
	return a, nil
}

// Summary returns the log attributes of an agent that starts.
func (a *Agent) Summary() []any {
	return []any{"version", Version, "node", a.clients.Host.NodeName, "checks", len(a.checks),
		"release", a.cfg.Remediate.Mode}
}

// SinceStart returns how long the agent has run.
func (a *Agent) SinceStart() time.Duration { return host.Now().Since(a.started) }

// Wake runs the checks that wait for source at once.
func (a *Agent) Wake(source detect.WakeSource) { a.engine.Wake(source, detect.Change{}) }

// History returns the stored history of inspections.
func (a *Agent) History() object.History { return a.leftovers.copyHistory() }

// stateStore keeps the state of checks from one run to the next.
func (a *Agent) stateStore() memory { return memory{a.store.Bucket(memoryBucket), a.saver} }

// loadDeps returns the dependencies of checks besides the host, with the state of an earlier run.
func (a *Agent) loadDeps() (checks.Deps, error) {
	deps := a.clients.Deps(a.stateStore())
	settings := kernellog.Settings{}
	if s := checks.SettingsOf[kernellog.Settings](a.cfg.Checks, "kernel-log"); s != nil {
		settings = s.Settings
	}
	var err error
	if deps.KernelLog, err = kernellog.NewKernelLog(settings); err != nil {
		return deps, err
	}
	kernellog.RestoreKernelLog(deps.KernelLog, deps.Sources, deps.State, a.started.Boot)
	return deps, nil
}

// state returns the current believed state of all checks.
func (a *Agent) state() finding.State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tracker.State()
}

// repeatEvery is how often reporters get an unchanged state, because some wait for time to pass. Most observations
// change no state, and there are hundreds a minute.
const repeatEvery = 10 * time.Second

// observe takes one observation into account and reports the changes. The engine makes one call at a time.
func (a *Agent) observe(l finding.Observation) {
	a.mu.Lock()
	before := a.tracker.Of(l.Check)
	updates := a.tracker.Observe(l)
	after := a.tracker.Of(l.Check)
	var state finding.State // nil: not needed now
	if len(updates) > 0 || !sameShape(before, after) || a.reported.IsZero() || l.At.Since(a.reported) >= repeatEvery {
		state, a.reported = a.tracker.State(), l.At
	}
	a.mu.Unlock()
	a.deps.Sources.Observe(l)
	if state != nil {
		a.report(state, updates)
	}
	a.saver.enqueue(l.Check, before, after, l.At)
	a.Progress.Ended(l.Check)
}

func (a *Agent) report(state finding.State, updates []finding.Update) {
	for _, u := range updates {
		if u.Kind == finding.StatusChanged {
			a.log.Info("check", "check", u.Check, "from", u.From, "to", u.To)
		} else {
			a.log.Info(string(u.Kind), "check", u.Check, "subject", u.Finding.Subject, "severity", u.Finding.Severity,
				"reason", u.Finding.Reason, "message", u.Finding.Message)
		}
	}
	for _, r := range a.reporters {
		r.Update(state, updates)
	}
}

// reportActivities passes the transitions of leftovers to the reporters that take them.
func (a *Agent) reportActivities(activities []finding.Activity) {
	for _, r := range a.reporters {
		if r, ok := r.(report.ActivityReporter); ok {
			r.Report(activities)
		}
	}
}

// forgetRemoved deletes the stored state of checks that no longer exist.
func (a *Agent) forgetRemoved(state finding.State) {
	known := map[string]bool{}
	for _, c := range a.checks {
		known[c.ID] = true
	}
	for _, s := range a.sources {
		known["source-"+string(s.Name)] = true
	}
	for _, check := range state.Checks() {
		if known[check] {
			continue
		}
		a.report(a.tracker.State(), a.tracker.Forget(check, a.started))
		if err := a.store.SaveCheck(check, nil); err != nil {
			a.log.Error("save state failed", "check", check, "err", err)
		}
	}
}

// Remember saves all believed state, so that an orderly stop loses no streak of observations.
func (a *Agent) Remember() {
	a.mu.Lock()
	a.saver.flush(a.tracker.State())
	a.mu.Unlock()
	kernellog.SaveKernelLog(a.deps.KernelLog, a.deps.Sources, a.deps.State, host.Now(), true)
	a.saver.write()
}

// Status returns the current state.
func (a *Agent) Status() status.Status {
	now, state := host.Now(), a.state()
	s := status.Status{Version: Version, Node: a.clients.Host.NodeName, PID: os.Getpid(), Started: a.started, Now: now,
		Findings: state.Raised(), Trouble: []string{}, Release: a.leftovers.status(), Repair: a.repairs.Status(),
		Leftovers: a.leftovers.report.Load()}
	for _, check := range state.Checks() {
		c := state[check]
		s.Checks = append(s.Checks, status.CheckStatus{Check: check, Status: c.Status, Since: c.Since, Error: c.Err, Access: c.Access,
			Why: c.Why, Condition: a.conditionOf(check)})
	}
	s.Sinks = a.sinks.all(a.reporters)
	if a.fleet != nil {
		s.Fleet = a.fleet.Status()
	}
	if err := a.store.Trouble(); err != nil {
		s.Trouble = append(s.Trouble, err.Error())
	}
	if a.taint != nil {
		if why := a.taint.Trouble(); why != "" {
			s.Trouble = append(s.Trouble, why)
		}
	}
	return s
}

// conditionOf returns the node condition that reports fatal findings of a check, or "" if there is none.
func (a *Agent) conditionOf(check string) string {
	if a.clients.Client == nil || !a.cfg.Report.Conditions.Enabled {
		return ""
	}
	for _, c := range a.checks {
		if c.ID == check {
			return a.cfg.Report.Conditions.Vocabulary.Name(c.Condition)
		}
	}
	return ""
}

// stateCheck reports that stored state may not survive a restart.
func stateCheck(store *store.Store) detect.Check {
	return detect.Check{
		ID: "agent-state", Domain: "agent", Every: time.Minute,
		Summary: "the agent cannot keep its state across restarts",
		Advice:  "Check the disk that holds the agent's state directory: is it full, read-only or failing?",
		Doc: detect.Doc{
			Reads: []string{"the result of the agent's last write to its state file"},
			Why: "Findings and events that are not sent yet are lost when the agent restarts before the disk " +
				"is repaired.",
			Faults: []detect.Fault{{Reason: "StateNotSafe", Severity: finding.Warning,
				When: "the state file could not be opened or written, was corrupt, or a write of it hangs for 10 s"}},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			trouble := store.Trouble()
			if trouble == nil {
				return nil, nil
			}
			return warning(finding.Subject{Kind: "agent", Name: "state"}, "StateNotSafe",
				fmt.Sprintf("the agent keeps its state in memory only, and a restart may lose it: %v", trouble)), nil
		},
	}
}

// policies returns when findings of each check are raised and cleared. A check that runs rarely may be blind for
// longer.
func policies(checks []detect.Check) map[string]finding.Policy {
	policies := map[string]finding.Policy{}
	for _, c := range checks {
		p := c.Policy
		if p.BlindAfter == 0 {
			p.BlindAfter = max(finding.DefaultBlindAfter, 3*c.Every+time.Minute)
		}
		policies[c.ID] = p
	}
	return policies
}

// limits returns the longest time between two runs of each check while the engine works.
func limits(checks []detect.Check) map[string]time.Duration {
	limits := map[string]time.Duration{}
	for _, c := range checks {
		limits[c.ID] = c.Limit()
	}
	return limits
}
