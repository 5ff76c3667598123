package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// daemon is the process: what outlives a change of the configuration. The agent itself is made anew for each one, and
// goes on with what the store remembers, as after a restart.
type daemon struct {
	source     Source
	log        *slog.Logger
	manager    *notify.Manager
	store      *store.Store
	started    finding.Timestamp
	configured *configState
	requests   chan request // without a buffer: a request is taken or waits
	current    atomic.Pointer[agent]
}

// Run is the daemon. It returns when ctx ends, or when it cannot do its work at all.
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
		log.Error("state is not as it should be; the agent goes on", "err", err)
	}
	if first.cfg.FromContainer {
		defer publish(first.cfg, log)()
	}
	klog.SetSlogLogger(log) // client-go speaks through it
	defer context.AfterFunc(ctx, d.manager.Stopping)()
	return d.supervise(ctx, first)
}

// supervise runs what lives as long as the process, and in it the agent.
func (d *daemon) supervise(ctx context.Context, first revision) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1) // one result; nobody may be left to read it
	err := supervise(ctx, d.log, []component{
		{"socket", status.SocketServer{Path: first.cfg.Socket, Answers: status.Answers{Status: d.status,
			History: d.history, Place: d.containerPaths, Reload: d.askReload}}.Run},
		{"memory", giveBack},
		{"watchdog", func(ctx context.Context) error { return d.manager.Watchdog(ctx, d.alive) }},
		{"agent", func(ctx context.Context) error {
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
	e, err := d.source.read()
	if err == nil {
		return e, nil
	}
	fallbacks := d.source.fallbacks()
	if len(fallbacks) == 0 {
		return e, err
	}
	d.log.Error("configuration refused", "err", err, "instead", fallbacks[0].from)
	d.configured.refuse(e, err)
	return fallbacks[0], nil
}

// work runs one agent after the other: a new one for each change of the configuration.
func (d *daemon) work(ctx context.Context, want revision) error {
	spares := d.source.fallbacks()
	reply := func(error) {} // to who asked for this configuration; nobody did at the start
	for {
		a, components, err := d.open(want, spares)
		if a == nil {
			reply(err)
			return err
		}
		reply(err)
		next, err := d.serve(ctx, a, components)
		if err != nil || next == nil {
			return err
		}
		want, spares, reply = next.edition, []revision{a.edition}, next.reply
	}
}

// open builds the agent with the configuration that is wanted. When that cannot be, it returns the error and the agent
// with the first spare one that can: all or nothing. There is no agent when none can.
func (d *daemon) open(want revision, spares []revision) (*agent, []component, error) {
	a, components, err := d.build(want)
	if err == nil {
		d.configured.force(want)
		if err := d.source.keep(want); err != nil {
			d.log.Error("a restart may not know this configuration", "err", err)
		}
		return a, components, nil
	}
	d.configured.refuse(want, err)
	for _, spare := range spares {
		d.log.Error("configuration refused", "err", err, "instead", spare.from)
		spare.cfg.StateDir, spare.cfg.Socket = want.cfg.StateDir, want.cfg.Socket // they are open
		a, components, spareErr := d.build(spare)
		if spareErr == nil {
			d.configured.force(spare)
			return a, components, err
		}
		d.log.Error("configuration refused", "err", spareErr)
	}
	return nil, nil, err
}

func (d *daemon) build(e revision) (*agent, []component, error) {
	clients, err := OpenHost(e.cfg, d.log)
	if err != nil {
		return nil, nil, err
	}
	for _, note := range clients.Notes {
		d.log.Info("found", "what", note)
	}
	for _, ignored := range e.cfg.Checks.Ignored {
		d.log.Warn("configuration names what is no longer there", "file", e.from, "what", ignored)
	}
	clients.keepLayout(e.cfg)
	a, components, err := d.wire(e, clients)
	if err != nil {
		return nil, nil, errors.Join(err, clients.Close())
	}
	return a, components, nil
}

// serve runs an agent until ctx ends or another configuration is wanted.
func (d *daemon) serve(ctx context.Context, a *agent, components []component) (*change, error) {
	defer a.clients.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.current.Store(a)
	d.log.Info("nodeagent runs", "version", Version, "node", a.clients.Host.NodeName, "checks", len(a.checks),
		"configuration", a.edition.from, "release", a.cfg.Remediate.Mode)
	var next *change
	err := supervise(ctx, d.log, append(components,
		component{"ready", func(ctx context.Context) error { return d.tellReady(ctx, a) }},
		component{"reload", func(ctx context.Context) error {
			defer cancel() // when it returns, this agent has had its time
			next = d.awaitChange(ctx, a)
			return nil
		}}))
	if err != nil {
		return nil, err // next may be written still
	}
	a.remember()
	return next, nil
}

// tellReady tells the service manager when every check has looked.
func (d *daemon) tellReady(ctx context.Context, a *agent) error {
	select {
	case <-ctx.Done():
	case <-a.progress.Done():
		d.manager.Ready()
		d.log.Info("ready: every check has looked", "after", host.Now().Since(a.started))
	}
	return nil
}

// alive returns why the agent should be started again.
func (d *daemon) alive() error {
	if a := d.current.Load(); a != nil {
		return a.progress.Stuck()
	}
	return nil // the service manager limits the time of a start by itself
}

// errStarting says that the daemon has not got far enough to answer.
var errStarting = errors.New("the agent is starting")

func (d *daemon) status() (status.Status, error) {
	a := d.current.Load()
	if a == nil {
		return status.Status{}, errStarting
	}
	s := a.status()
	s.Started, s.Readiness = d.started, d.readiness(a)
	return s, nil
}

func (d *daemon) history() (inspect.History, error) {
	a := d.current.Load()
	if a == nil {
		return nil, errStarting
	}
	return a.leftovers.copyHistory(), nil
}

// readiness is whether the agent does what it was installed for, and why not.
func (d *daemon) readiness(a *agent) status.Readiness {
	why := []string{}
	if waiting := a.progress.Waiting(); len(waiting) > 0 {
		why = append(why, fmt.Sprintf("not every check has looked yet: %v", waiting))
	}
	if err := a.progress.Stuck(); err != nil {
		why = append(why, err.Error())
	}
	if err := errors.Join(d.configured.trouble()); err != nil {
		why = append(why, err.Error())
	}
	return status.Readiness{Ready: len(why) == 0, Why: why}
}
