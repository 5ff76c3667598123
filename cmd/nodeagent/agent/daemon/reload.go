package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
)

// request asks for a reload of the configuration.
type request struct{ answer chan<- error } // buffered for its one answer; nil: no caller waits

// change is a new configuration to put in force, and the function that receives the outcome.
type change struct {
	revision revision
	reply    func(error)
}

// askReload makes the agent reload its configuration and waits for the outcome.
func (d *daemon) askReload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, status.ReloadLimit)
	defer cancel()
	answer := make(chan error, 1)
	select {
	case d.requests <- request{answer}:
	case <-ctx.Done():
		return fmt.Errorf("the agent is busy: %w", ctx.Err())
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the agent has not reported the outcome: %w", ctx.Err())
	}
}

// awaitChange waits for a valid change of the configuration. It refuses invalid ones, and the agent continues.
func (d *daemon) awaitChange(ctx context.Context, a *running) *change {
	layout := time.NewTicker(agent.LayoutEvery)
	defer layout.Stop()
	for {
		var answer chan<- error
		select {
		case <-ctx.Done():
			return nil
		case <-layout.C:
			if a.clients.LayoutMoved(ctx, a.revision.cfg) {
				d.log.Info("restart the agent: the paths or the name of kubelet have changed")
				return &change{a.revision, func(error) {}}
			}
			continue
		case <-d.source.Reload:
		case r := <-d.requests:
			answer = r.answer
		}
		reply := func(err error) {
			if err != nil {
				err = fmt.Errorf("%w: %w", status.ErrRefused, err)
			}
			if answer != nil {
				answer <- err
			}
		}
		wasReady := len(a.Progress.Waiting()) == 0 // otherwise notifyReady will follow
		if wasReady {
			d.manager.Reloading()
		}
		want, err := d.reread(a)
		if err == nil && !d.configured.unchanged(want) {
			d.log.Info("configuration changed", "file", d.source.file())
			return &change{want, reply}
		}
		if err != nil {
			d.log.Error("refuse configuration: the previous one stays in force", "err", err)
			d.configured.refuse(want, err)
		}
		a.Wake(wakeConfiguration)
		if wasReady {
			d.manager.Ready()
		}
		reply(err)
	}
}

// reread reads the configuration and tests as much as it can while the old one is in force.
func (d *daemon) reread(a *running) (revision, error) {
	want, err := d.source.read()
	if err != nil {
		return want, err
	}
	for _, p := range []struct{ key, was, is string }{
		{"stateDir", a.revision.cfg.StateDir, want.cfg.StateDir},
		{"socket", a.revision.cfg.Socket, want.cfg.Socket},
	} {
		if p.was != p.is {
			return want, fmt.Errorf("%s: %s: %s cannot be changed to %s without a restart", d.source.file(), p.key,
				p.was,
				p.is)
		}
	}
	if err := want.newlyBroken(a.revision); err != nil {
		return want, err
	}
	clients, err := agent.OpenHost(want.cfg, d.log)
	if err != nil {
		return want, err
	}
	return want, clients.Close()
}
