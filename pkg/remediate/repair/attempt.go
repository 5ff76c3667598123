package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/wal"
)

// Time limits for calls that could hang.
const (
	askLimit     = time.Minute // one question: a check, the apiserver, a slot
	examineLimit = 20 * time.Second
	stepLimit    = 5 * time.Minute // one step
)

// try is one repair in progress.
type try struct {
	*Runner
	step    *Step
	journal *wal.File
	lock    *mutate.ReleaseLock // of repairs
	slot    fleet.Held
}

// attempt does one repair, or writes into the step why not. It reports whether it journaled an intent.
func (r *Runner) attempt(ctx context.Context, step *Step) (intended bool) {
	lock, err := r.lock()
	if err != nil {
		step.Blocked = err.Error()
		return false
	}
	defer func() { _ = lock.Unlock() }()
	r.readHistory() // another process may have written to it meanwhile
	r.mu.Lock()
	step.Blocked, r.current = blocked(*step, r.history, r.options.Settings, r.options.Host.Clock()), step.title()
	if r.trouble != "" {
		step.Blocked = r.trouble
	}
	r.mu.Unlock()
	if !step.Acts() {
		return false
	}
	t := &try{Runner: r, step: step, lock: lock}
	if step.Blocked = t.before(ctx); !step.Acts() {
		return false
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
		defer cancel()
		t.slot.Release(ctx)
	}()
	if t.journal, err = wal.Open(journalFile(r.options.StateDir)); err != nil {
		step.Blocked = err.Error()
		return false
	}
	defer func() { _ = t.journal.Close() }()
	intended, err = t.do(ctx)
	if err != nil {
		step.Blocked = err.Error()
		r.options.Log.Error("repair failed", "action", step.Action, "subject", step.Subject, "err", err)
	}
	r.readHistory()
	return intended
}

func (s *Step) title() string { return fmt.Sprintf("%s of %s", s.Action, s.Subject.Name) }

// before asks everything that must agree before the check runs again. On success t holds a slot.
func (t *try) before(ctx context.Context) string {
	if why := t.killSwitch(); why != "" {
		t.step.opens = opensSwitch
		return why
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if t.options.Paused != nil {
		why, err := t.options.Paused(ctx)
		if err != nil {
			why = fmt.Sprintf("cannot tell whether repairs are paused: %v", err)
		}
		if why != "" {
			t.step.opens = opensPause
			return why
		}
	}
	t.slot = noSlot{}
	if !t.step.action.Disrupts || t.options.Settings.FleetBudget == None {
		return ""
	}
	if t.options.Slots == nil {
		t.step.opens = opensRight
		return "refused: no fleet budget: all nodes might do this at the same time (fleetBudget: none permits that)"
	}
	slot, err := t.options.Slots.Acquire(ctx, string(t.step.Action), t.longest())
	if err != nil {
		t.step.opens = opensSlot(err)
		return err.Error()
	}
	t.slot = slot
	return ""
}

// longest is the longest time that a repair may take, including its verification.
func (t *try) longest() time.Duration {
	s := t.options.Settings
	return stepLimit + s.VerifyWithin + t.step.action.Settle + s.Hold + 4*askLimit
}

func (t *try) killSwitch() string {
	return release.KillSwitch(t.options.Host.Files, t.options.Releases.KillSwitch)
}

// do confirms that the fault is still there, runs the step between its intent and its end, and waits for the
// verification. An error means that the journal cannot be written, or that a fault point was hit.
func (t *try) do(ctx context.Context) (intended bool, err error) {
	here, err := t.faulty(ctx)
	switch {
	case err != nil:
		t.step.Blocked = fmt.Sprintf("cannot tell whether the fault is still there: %v", err)
		return false, nil
	case !here:
		t.step.Blocked = "the fault is gone"
		return false, nil
	}
	job, err := t.examine(ctx, t.step)
	if err != nil {
		t.step.Blocked = err.Error()
		return false, nil
	}
	t.step.Does = job.Does
	// So that no release acts on an object that this step may end meanwhile.
	releases, err := t.options.Releases.LockNode(t.options.StateDir)
	if err != nil {
		t.step.Blocked = err.Error()
		return false, nil
	}
	defer func() { _ = releases.Unlock() }()
	if err := t.journal.Rotate(); err != nil {
		return false, err
	}
	intent := t.record(release.Intent, "", "")
	intent.Reason, intent.Does, intent.Identity = t.step.Reason, job.Does, job.Identity
	if err := t.write(intent); err != nil {
		return false, err
	}
	result, why, err := t.act(ctx, job)
	if err != nil {
		return true, err
	}
	if err := errors.Join(releases.Unlock(), t.write(t.record(release.End, result, why))); err != nil {
		return true, err
	}
	if err := t.options.faultPoint("repair end: " + string(t.step.Action)); err != nil {
		return true, err
	}
	if result != release.Refused && result != release.Stopped {
		result, why = t.verify(ctx, why)
	}
	return true, t.write(t.record(release.Finish, result, why))
}

// act asks the guards again, since writing the intent may have taken long, and makes the change.
func (t *try) act(ctx context.Context, job Job) (release.Result, string, error) {
	if err := t.options.faultPoint("repair intent: " + string(t.step.Action)); err != nil {
		return "", "", err
	}
	if why := t.guard(ctx); why != "" {
		return release.Stopped, why, nil
	}
	t.options.Log.Warn("repairing", "action", t.step.Action, "subject", t.step.Subject, "does", job.Does)
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	did, err := job.Do(ctx)
	if crash := t.options.faultPoint("repair done: " + string(t.step.Action)); crash != nil {
		return "", "", crash
	}
	if refusal, ok := errors.AsType[mutate.Refusal](err); ok {
		return release.Refused, refusal.Why, nil
	}
	if mutate.WasNotBegun(err) {
		return release.Refused, err.Error(), nil
	}
	if err != nil { // it may have helped nevertheless: the check decides
		return release.Failed, wal.Clip(withNote(err.Error(), did)), nil
	}
	return Done, wal.Clip(did), nil
}

// guard returns why the step must not run despite its intent.
func (t *try) guard(ctx context.Context) string {
	if why := t.killSwitch(); why != "" {
		return why
	}
	if ctx.Err() != nil {
		return "the agent is stopping, or its configuration has changed"
	}
	if err := t.lock.Held(); err != nil {
		return fmt.Sprintf("another repair may be running: %v", err)
	}
	if !t.slot.Valid() {
		return "the slot of the fleet's budget was lost"
	}
	return ""
}

// faulty runs the check and reports whether it finds the fault.
func (t *try) faulty(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	seen, err := t.options.Observe(ctx, t.step.Check)
	if err != nil {
		return false, err
	}
	for _, f := range seen.Findings {
		if f.Subject == t.step.Subject {
			return true, nil
		}
	}
	if !seen.Conclusive(t.step.Subject) {
		return false, seen.Err
	}
	return false, nil
}

func (t *try) record(event release.Event, result release.Result, why string) Record {
	return Record{At: t.options.Host.Clock(), Event: event, Action: t.step.Action, Check: t.step.Check,
		Subject: t.step.Subject, Finding: t.step.believed.ID, Result: result, Why: why}
}

// write journals a record and then reports it.
func (t *try) write(r Record) error {
	if t.options.onWrite != nil {
		if err := t.options.onWrite(r); err != nil {
			return err
		}
	}
	if err := t.journal.Write(r); err != nil {
		return err
	}
	t.options.Report([]finding.Activity{activityOf(r, t.step)})
	return nil
}
