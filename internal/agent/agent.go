// Package agent wires the parts together. It is the only package that knows all others.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/hostns"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// agent is one running daemon.
type agent struct {
	cfg       config.Config
	edition   revision
	log       *slog.Logger
	clients   *Clients
	store     *store.Store
	saver     *stateWriter
	checks    []detect.Check
	deps      checks.Deps
	reporters []report.Reporter
	leftovers *leftovers
	monitors  *npd.Monitors // of node-problem-detector
	meter     meter
	sources   []detect.Source
	teller    *sinkMonitor
	engine    *detect.Engine
	progress  *notify.Progress
	started   finding.Timestamp

	mu      sync.Mutex // guards tracker
	tracker *finding.Tracker
}

// component is a part that runs until ctx ends and leaves nothing behind.
type component struct {
	name string
	run  func(ctx context.Context) error
}

// publish makes the program findable beside its socket while it runs. The function that it returns takes that back.
func publish(cfg config.Config, log *slog.Logger) func() {
	remove, err := hostns.Publish(filepath.Dir(cfg.Socket), cfg.StateDir)
	if err != nil {
		log.Warn("the program cannot be called on the host", "err", err)
		return func() {}
	}
	return func() {
		if err := remove(); err != nil {
			log.Warn("the copy of the program on the host", "err", err)
		}
	}
}

// wire builds the agent and lists its components in the order in which they start.
func (d *daemon) wire(e revision, clients *Clients) (*agent, []component, error) {
	cfg, log, store := e.cfg, d.log, d.store
	a := &agent{cfg: cfg, edition: e, log: log, clients: clients, store: store, saver: newSaver(store, log),
		started: host.Now()}
	left, err := newLeftovers(cfg, log, clients, store, a.stateStore())
	if err != nil {
		return nil, nil, err
	}
	a.leftovers = left
	deps, err := a.loadDeps()
	if err != nil {
		return nil, nil, err
	}
	a.deps = deps
	own := checks.Checks(cfg.Checks, deps)
	a.monitors = a.openMonitors(own)
	a.checks = slices.Concat(own, a.monitors.Checks(), plugin.Checks(cfg.Plugins),
		[]detect.Check{left.check(), stateCheck(store), d.configured.check()})
	a.progress = notify.NewProgress(limits(a.checks))

	state, err := store.LoadState()
	if err != nil {
		log.Error("part of the stored state was lost", "err", err)
	}
	a.tracker = finding.NewTracker(policies(a.checks), state)

	metrics := a.openReporters()
	a.reporters = append(a.reporters, newServiceStatus(d.manager, a.checks))
	left.activity.send = a.reportActivities
	a.sources = append(sources(clients.Host, log, metrics, deps.KernelLog, a.monitors), a.monitors.Sources()...)
	a.engine = detect.NewEngine(clients.Host, log, a.checks, a.sources, metrics.engine(), a.observe)
	components := []component{
		{"saver", a.saver.Run},
		{"release", left.Run},
	}
	for _, r := range a.reporters {
		components = append(components, component{r.Name(), r.Run})
	}
	if cfg.Report.Metrics.Enabled {
		components = append(components, component{"metrics", metrics.serve(cfg.Report.Metrics.Listen,
			health{a.progress, d.configured})})
	}
	a.forgetGone(state)
	a.tell(thisBoot(a.tracker.State(), a.started), nil) // what was believed a moment ago still holds
	return a, append(components, component{"engine", a.engine.Run}), nil
}

// stateStore keeps what checks remember from one run to the next.
func (a *agent) stateStore() memory { return memory{a.store.Bucket(memoryBucket), a.saver} }

// loadDeps are what some checks need besides the host, with what an earlier run has left.
func (a *agent) loadDeps() (checks.Deps, error) {
	deps := a.clients.Deps(a.stateStore())
	settings := kernellog.Settings{}
	if s := checks.SettingsOf[kernellog.Settings](a.cfg.Checks, "kernel-log"); s != nil {
		settings = s.Settings
	}
	var err error
	if deps.KernelLog, err = kernellog.NewKernelLog(settings); err != nil {
		return deps, err
	}
	if err := kernellog.RestoreKernelLog(deps.KernelLog, deps.Sources, deps.State, a.started.Boot); err != nil {
		a.log.Error("what the kernel said before is read again", "err", err)
	}
	return deps, nil
}

// observe takes one look into account and tells everybody. The engine calls it for one look at a time.
func (a *agent) observe(l finding.Observation) {
	a.mu.Lock()
	before := a.tracker.State()[l.Check]
	updates := a.tracker.Observe(l)
	state := a.tracker.State()
	a.mu.Unlock()
	a.deps.Sources.Saw(l)
	a.tell(state, updates)
	a.saver.enqueue(l.Check, before, state[l.Check], l.At)
	a.progress.Saw(l.Check)
}

func (a *agent) tell(state finding.State, updates []finding.Update) {
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

// reportActivities gives what became of leftovers to the reporters that take it.
func (a *agent) reportActivities(activities []finding.Activity) {
	for _, r := range a.reporters {
		if r, ok := r.(report.ActivityReporter); ok {
			r.Report(activities)
		}
	}
}

// forgetGone clears what is stored of checks that exist no more.
func (a *agent) forgetGone(state finding.State) {
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
		a.tell(a.tracker.State(), a.tracker.Forget(check, a.started))
		if err := a.store.SaveCheck(check, nil); err != nil {
			a.log.Error("state not saved", "check", check, "err", err)
		}
	}
}

// thisBoot leaves out what was believed before the machine was started: nothing of that is proven now.
func thisBoot(state finding.State, now finding.Timestamp) finding.State {
	maps.DeleteFunc(state, func(_ string, c *finding.CheckState) bool { return c.FirstLook.Boot != now.Boot })
	return state
}

// remember saves all that is believed, so that nothing which is counting is lost by an orderly end.
func (a *agent) remember() {
	a.mu.Lock()
	a.saver.flush(a.tracker.State())
	a.mu.Unlock()
	kernellog.SaveKernelLog(a.deps.KernelLog, a.deps.Sources, a.deps.State, host.Now(), true)
	a.saver.write()
}

func (a *agent) status() status.Status {
	now := host.Now()
	a.mu.Lock()
	state := a.tracker.State()
	a.mu.Unlock()
	s := status.Status{Version: Version, Node: a.clients.Host.NodeName, PID: os.Getpid(), Started: a.started, Now: now,
		Findings: state.Raised(), Trouble: []string{}, Release: a.leftovers.status(), Leftovers: a.leftovers.last()}
	for _, check := range state.Checks() {
		c := state[check]
		s.Checks = append(s.Checks, status.CheckStatus{Check: check, Status: c.Status, Since: c.Since, Error: c.Err,
			Why: c.Why, Condition: a.conditionOf(check)})
	}
	s.Told = a.teller.all(a.reporters)
	if err := a.store.Trouble(); err != nil {
		s.Trouble = append(s.Trouble, err.Error())
	}
	return s
}

// conditionOf returns the condition of the Node that what is fatal of a check becomes; empty where there is none.
func (a *agent) conditionOf(check string) string {
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

// stateCheck finds that the agent's own memory is not safe.
func stateCheck(store *store.Store) detect.Check {
	return detect.Check{
		ID: "agent-state", Domain: "agent", Every: time.Minute,
		Summary: "the agent cannot keep what it believes across restarts",
		Advice:  "Look at the disk that holds the agent's state directory: full, read-only or failing?",
		Doc: detect.Doc{
			Reads: []string{"what became of the agent's last write to its state file"},
			Why: "What was believed, and what waits to be told, is lost when the agent is started again before " +
				"the disk is well.",
			Faults: []detect.Fault{{Reason: "StateNotSafe", Severity: finding.Warning,
				When: "the state file could not be opened or written, was corrupt, or a write of it hangs for 10 s"}},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			trouble := store.Trouble()
			if trouble == nil {
				return nil, nil
			}
			return []finding.Finding{{
				Subject: finding.Subject{Kind: "agent", Name: "state"}, Severity: finding.Warning,
				Reason:  "StateNotSafe",
				Message: fmt.Sprintf("the agent goes on in memory, but a restart may forget: %v", trouble),
			}}, nil
		},
	}
}

// policies returns when each check is believed. A check that looks seldom may also be blind for longer.
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

// limits returns how long each check may be silent while the engine works.
func limits(checks []detect.Check) map[string]time.Duration {
	limits := map[string]time.Duration{}
	for _, c := range checks {
		limits[c.ID] = c.Limit()
	}
	return limits
}

// supervise runs all components until ctx ends. One that fails is started again after a while: the others go on.
func supervise(ctx context.Context, log *slog.Logger, components []component) error {
	var wg sync.WaitGroup
	for _, c := range components {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := c.run(ctx)
				if ctx.Err() != nil || err == nil {
					return
				}
				log.Error("component failed, it is started again", "component", c.name, "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(componentRetry):
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-afterEnd(ctx, stopGrace):
		return errors.New("a component did not stop in time")
	}
}

const (
	componentRetry = 5 * time.Second
	// stopGrace is how long components may take to end; one of them may hang in a disk.
	stopGrace = 10 * time.Second
)

// afterEnd is closed some time after ctx has ended.
func afterEnd(ctx context.Context, grace time.Duration) <-chan struct{} {
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(ended) }) })
	return ended
}
