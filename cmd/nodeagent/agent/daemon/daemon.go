// Package daemon manages the life of the agent's process: start, single instance, reload of the configuration,
// watchdog, end.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// daemon holds the parts that outlive a change of the configuration. Each configuration gets a new agent, which
// continues from the stored state, as after a restart.
type daemon struct {
	source     Source
	log        *slog.Logger
	manager    *notify.Manager
	store      *store.Store
	started    finding.Timestamp
	configured *configState
	requests   chan request // unbuffered: a request is taken or waits
	current    atomic.Pointer[running]
}

// running is an agent with its configuration.
type running struct {
	*agent.Agent
	clients  *agent.Clients
	revision revision
}

// Run runs the daemon. It returns when ctx ends or the daemon cannot start.
func Run(ctx context.Context, source Source, log *slog.Logger) error {
	setRuntimeLimits()
	d := &daemon{
		source: source, log: log, manager: notify.New(log), started: host.Now(),
		configured: &configState{source: source}, requests: make(chan request),
	}
	first, err := d.first()
	if err != nil {
		return err
	}
	d.store, err = acquire(ctx, first.cfg, log, d.manager)
	if err != nil || d.store == nil {
		return err
	}
	defer d.store.Close()
	if err := d.store.Trouble(); err != nil {
		log.Error("open stored state failed: working without it", "err", err)
	}
	if first.cfg.FromContainer {
		defer publish(first.cfg, log)()
	}
	klog.SetSlogLogger(log) // client-go logs through it
	defer context.AfterFunc(ctx, d.manager.Stopping)()
	return d.supervise(ctx, first)
}

// supervise runs the components that live as long as the process, the agent among them.
func (d *daemon) supervise(ctx context.Context, first revision) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1) // one result, which may stay unread
	err := supervise(ctx, d.log, []agent.Component{
		{Name: "socket", Run: status.SocketServer{Path: first.cfg.Socket, Status: d.status, History: d.history,
			Paths: d.containerPaths, Reload: d.askReload}.Run},
		{Name: "memory", Run: releaseMemory},
		{Name: "watchdog", Run: func(ctx context.Context) error { return d.manager.Watchdog(ctx, d.alive) }},
		{Name: "agent", Run: func(ctx context.Context) error {
			defer stop()
			ended <- d.work(ctx, first)
			return nil
		}},
	})
	select {
	case failed := <-ended:
		return errors.Join(failed, err)
	default:
		return err
	}
}

// first returns the configuration to start with.
func (d *daemon) first() (revision, error) {
	r, err := d.source.read()
	if err == nil {
		return r, nil
	}
	fallbacks := d.source.fallbacks()
	if len(fallbacks) == 0 {
		return r, err
	}
	d.log.Error("configuration refused", "err", err, "instead", fallbacks[0].from)
	d.configured.refuse(r, err)
	return fallbacks[0], nil
}

// work runs one agent after another: a new one for each change of the configuration.
func (d *daemon) work(ctx context.Context, want revision) error {
	spares := d.source.fallbacks()
	reply := func(error) {} // answers the reload that asked for this configuration; at the start there is none
	for {
		a, err := d.open(want, spares)
		reply(err)
		if a == nil {
			return err
		}
		next, err := d.serve(ctx, a)
		if err != nil || next == nil {
			return err
		}
		want, spares, reply = next.revision, []revision{a.revision}, next.reply
	}
}

// open builds the agent with the wanted configuration. If that fails, it returns the error and the agent with the first
// spare configuration that works: all or nothing. If none works, it returns no agent.
func (d *daemon) open(want revision, spares []revision) (*running, error) {
	a, err := d.build(want)
	if err == nil {
		d.configured.force(want)
		if err := d.source.keep(want); err != nil {
			d.log.Error("save the configuration for a restart failed", "err", err)
		}
		return a, nil
	}
	d.configured.refuse(want, err)
	for _, spare := range spares {
		d.log.Error("configuration refused", "err", err, "instead", spare.from)
		spare.cfg.StateDir, spare.cfg.Socket = want.cfg.StateDir, want.cfg.Socket // already open
		a, spareErr := d.build(spare)
		if spareErr == nil {
			d.configured.force(spare)
			return a, err
		}
		d.log.Error("configuration refused", "err", spareErr)
	}
	return nil, err
}

func (d *daemon) build(r revision) (*running, error) {
	clients, err := agent.OpenHost(r.cfg, d.log)
	if err != nil {
		return nil, err
	}
	for _, note := range clients.Notes {
		d.log.Info("discovered", "what", note)
	}
	for _, ignored := range append(r.cfg.Ignored(), r.monitors.Ignored()...) {
		d.log.Warn("ignore parts of the configuration that were removed", "file", r.from, "what", ignored)
	}
	clients.KeepLayout(r.cfg)
	a, err := agent.New(agent.Options{
		Config: r.cfg, Monitors: r.monitors, Log: d.log, Clients: clients, Store: d.store, Manager: d.manager,
		Checks: []detect.Check{d.configured.check()},
		Refused: func() error {
			invalid, _ := d.configured.trouble()
			return invalid
		},
	})
	if err != nil {
		return nil, errors.Join(err, clients.Close())
	}
	return &running{a, clients, r}, nil
}

// serve runs an agent until ctx ends or the configuration changes.
func (d *daemon) serve(ctx context.Context, a *running) (*change, error) {
	defer a.clients.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.current.Store(a)
	d.log.Info("nodeagent runs", append(a.Summary(), "configuration", a.revision.from)...)
	var next *change
	err := supervise(ctx, d.log, append(a.Components,
		agent.Component{Name: "ready", Run: func(ctx context.Context) error { return d.notifyReady(ctx, a) }},
		agent.Component{Name: "reload", Run: func(ctx context.Context) error {
			defer cancel() // ends this agent
			next = d.awaitChange(ctx, a)
			return nil
		}}))
	if err != nil {
		return nil, err // next may still be written
	}
	a.Remember()
	return next, nil
}

// notifyReady notifies the service manager when every check has run. systemd merges a reload into a start that has not
// ended and never requests it, so the daemon then puts the current content of the file in force.
func (d *daemon) notifyReady(ctx context.Context, a *running) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.Progress.Done():
	case <-time.After(slowStart):
		if !d.waitForChecks(ctx, a) {
			return nil
		}
	}
	d.manager.Ready()
	d.log.Info("ready: every check has run", "after", a.SinceStart())
	if _, unloaded := d.configured.trouble(); unloaded != nil {
		select {
		case d.requests <- request{}:
		case <-ctx.Done():
		}
	}
	return nil
}

// slowStart is how long a start may take before the agent asks the service manager for more time: a plugin may need
// minutes, and killing the agent for that would not help.
const slowStart = 30 * time.Second

// waitForChecks asks for more time until every check has run, and reports whether they have. A stuck check restarts the
// agent, as at any other time.
func (d *daemon) waitForChecks(ctx context.Context, a *running) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-a.Progress.Done():
		case <-ctx.Done():
		}
	}()
	_ = d.manager.Wait(ctx, fmt.Sprintf("starts: checks that have not run yet: %v", a.Progress.Waiting()))
	return len(a.Progress.Waiting()) == 0
}

// alive returns why the agent must be restarted.
func (d *daemon) alive() error {
	if a := d.current.Load(); a != nil {
		return a.Progress.Stuck()
	}
	return nil // the service manager limits the time of a start itself
}

// errStarting means that the daemon cannot answer yet.
var errStarting = errors.New("the agent is starting")

func (d *daemon) status() (status.Status, error) {
	a := d.current.Load()
	if a == nil {
		return status.Status{}, errStarting
	}
	s := a.Status()
	s.Started, s.Readiness = d.started, d.readiness(a)
	return s, nil
}

func (d *daemon) history() (object.History, error) {
	a := d.current.Load()
	if a == nil {
		return nil, errStarting
	}
	return a.History(), nil
}

// readiness says whether the agent does its job, and if not, why.
func (d *daemon) readiness(a *running) status.Readiness {
	why := []string{}
	if waiting := a.Progress.Waiting(); len(waiting) > 0 {
		why = append(why, fmt.Sprintf("checks that have not run yet: %v", waiting))
	}
	if err := a.Progress.Stuck(); err != nil {
		why = append(why, err.Error())
	}
	if err := errors.Join(d.configured.trouble()); err != nil {
		why = append(why, err.Error())
	}
	return status.Readiness{Ready: len(why) == 0, Why: why}
}
