package condition

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/report"
)

// Run writes until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	stop := r.behind.Start(ctx)
	report.Steps(ctx, r.changed, r.step)
	r.due() // stores the last state
	return stop()
}

// step does the due work and returns when to check again.
func (r *Reporter) step(ctx context.Context) time.Time {
	act, check := r.due()
	if act.After(time.Now()) {
		return check
	}
	if err := r.attempt(ctx); err != nil {
		r.failed(ctx, err)
	}
	_, check = r.due()
	return check
}

// due returns when to act, and when to check again at the latest.
func (r *Reporter) due() (act, check time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	again := r.adoptSeen(now)
	p := r.plan(now)
	r.bad = p.bad
	r.ledger.store(r.behind)
	act = report.Earliest(r.pace.due(now, p, r.ledger.adopted != nil), r.repeat())
	if p.held {
		return act, report.Earliest(act, again, r.graceEnd)
	}
	return act, report.Earliest(act, again)
}

// attempt reads the Node the first time, and writes afterwards.
func (r *Reporter) attempt(ctx context.Context) error {
	r.mu.Lock()
	adopted := r.ledger.adopted != nil
	r.mu.Unlock()
	if !adopted {
		return r.adopt(ctx)
	}
	return r.write(ctx)
}

// adopt reads the conditions of the Node. The difference decides when to write.
func (r *Reporter) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	conditions, err := r.config.Node.NodeConditions(ctx)
	if err != nil {
		r.config.Observer.Wrote(r.Name(), report.ResultError, err)
		return fmt.Errorf("read node conditions: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.succeeded()
	r.ledger.adoptAll(r.kinds, conditions)
	r.pace.retryAt = time.Time{}
	if r.config.Owner == nil { // otherwise the Node only provides the transition times, and has none of ours
		maps.Copy(r.shown, r.ledger.adopted)
	}
	return nil
}

// write sends one patch with all our conditions, as believed now.
func (r *Reporter) write(ctx context.Context) error {
	r.mu.Lock()
	now := time.Now()
	p := r.plan(now)
	if len(p.conditions)+len(p.removed) == 0 {
		r.uncertain = false
		r.pace.settled(now, none)
		r.mu.Unlock()
		return nil
	}
	for _, c := range p.conditions {
		r.ledger.written(string(c.Type), true)
	}
	r.ledger.store(r.behind)
	heartbeat := metav1.NewTime(now)
	if p.haste == none && !r.repeat().IsZero() && now.Before(r.pace.refreshAt) {
		heartbeat = r.sent // an identical repetition: if it is still there, the apiserver does not write
	}
	r.pace.wrote = now
	r.mu.Unlock()

	patch, err := r.config.Encode(p.conditions, p.removed, heartbeat)
	if err == nil {
		err = r.send(ctx, patch)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uncertain = err != nil
	if err != nil {
		return err
	}
	r.succeeded()
	if heartbeat != r.sent {
		r.pace.settled(time.Now(), p.haste)
		r.sent = heartbeat
	}
	r.wrote(p)
	return nil
}

func (r *Reporter) send(ctx context.Context, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	if err := r.config.Node.PatchNodeStatus(ctx, patch); err != nil {
		r.config.Observer.Wrote(r.Name(), report.ResultError, err)
		return fmt.Errorf("write node conditions: %w", err)
	}
	r.config.Observer.Wrote(r.Name(), report.ResultOK, nil)
	return nil
}

// wrote notes the new conditions of the Node, and logs the changes.
func (r *Reporter) wrote(p plan) {
	for _, c := range p.conditions {
		if old := r.shown[string(c.Type)]; old.Status != c.Status || old.Reason != c.Reason {
			r.config.Log.Info("node condition", "condition", c.Type, "status", c.Status, "reason", c.Reason)
		}
		r.shown[string(c.Type)] = c
	}
	for _, name := range p.removed {
		r.config.Log.Info("node condition removed", "condition", name)
		r.removed(name)
	}
	r.ledger.store(r.behind)
}

// failed decides when to try again. It logs only the first failure in a row.
func (r *Reporter) failed(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return // the agent exits; not a fault of the apiserver
	}
	if r.backoff.Failures() == 0 {
		r.config.Log.Warn("write node conditions failed", "err", err)
	}
	r.pace.failed(time.Now(), r.backoff.Failed(err))
}

// succeeded ends a row of failures.
func (r *Reporter) succeeded() {
	if n := r.backoff.Failures(); n > 0 {
		r.config.Log.Info("the apiserver answers again", "failures", n)
	}
	r.backoff.Succeeded()
}

var _ report.Reporter = (*Reporter)(nil)
