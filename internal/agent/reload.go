package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// request is a wish to read the configuration anew.
type request struct{ answer chan<- error } // with room for the one answer

// change is a new configuration that is to be put in force, and who is told how that went.
type change struct {
	edition revision
	reply   func(error)
}

// askReload has the agent read its configuration anew and waits for the outcome.
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
		return fmt.Errorf("the agent has not told the outcome: %w", ctx.Err())
	}
}

// awaitChange waits until the operator wants another configuration that is valid. Others are refused: the agent goes
// on.
func (d *daemon) awaitChange(ctx context.Context, a *agent) *change {
	layout := time.NewTicker(layoutEvery)
	defer layout.Stop()
	for {
		var answer chan<- error
		select {
		case <-ctx.Done():
			return nil
		case <-layout.C:
			if a.clients.layoutMoved(a.cfg) {
				d.log.Info("kubelet is laid out otherwise now, the agent begins anew")
				return &change{a.edition, func(error) {}}
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
		wasReady := len(a.progress.Waiting()) == 0 // otherwise tellReady has yet to tell
		if wasReady {
			d.manager.Reloading()
		}
		want, err := d.reread(a)
		if err == nil && !d.configured.unchanged(want) {
			d.log.Info("configuration changed", "file", d.source.file())
			return &change{want, reply}
		}
		if err != nil {
			d.log.Error("configuration refused, the agent goes on as before", "err", err)
			d.configured.refuse(want, err)
		}
		a.engine.Wake(wakeConfiguration, detect.Change{})
		if wasReady {
			d.manager.Ready()
		}
		reply(err)
	}
}

// reread reads the configuration and tries all of it that can be tried while the old one is in force.
func (d *daemon) reread(a *agent) (revision, error) {
	want, err := d.source.read()
	if err != nil {
		return want, err
	}
	for _, p := range []struct{ key, was, is string }{
		{"stateDir", a.cfg.StateDir, want.cfg.StateDir}, {"socket", a.cfg.Socket, want.cfg.Socket},
	} {
		if p.was != p.is {
			return want, fmt.Errorf("%s: %s: %s cannot become %s without a restart", d.source.file(), p.key, p.was,
				p.is)
		}
	}
	if err := want.newlyBroken(a.edition); err != nil {
		return want, err
	}
	clients, err := OpenHost(want.cfg, d.log)
	if err != nil {
		return want, err
	}
	return want, clients.Close()
}
