package remediate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// work does the steps of one kind. Steps that found something busy are tried again as long as others get on: of mounts
// stacked on one point the lower can only go after the upper.
func (p *podRelease) work(ctx context.Context, action Action, steps []StepOutcome) (acted bool, err error) {
	due := slices.DeleteFunc(indexes(steps), func(i int) bool { return steps[i].Result != "" })
	if len(due) == 0 {
		return false, nil
	}
	if action.Prepare != nil {
		if err := p.prepare(ctx, action, steps, due); err != nil {
			return true, err
		}
	}
	for len(due) > 0 {
		var again []int
		for _, i := range due {
			busy, err := p.one(ctx, action, &steps[i])
			if err != nil {
				return true, err
			}
			if busy {
				again = append(again, i)
			}
		}
		if len(again) == len(due) {
			break
		}
		due = again
	}
	return true, nil
}

func indexes(steps []StepOutcome) []int {
	all := make([]int, len(steps))
	for i := range all {
		all[i] = i
	}
	return all
}

// prepare does what has to be done once before the first of several objects.
func (p *podRelease) prepare(ctx context.Context, action Action, steps []StepOutcome, due []int) error {
	objects := make([]inspect.Judged, 0, len(due))
	for _, i := range due {
		objects = append(objects, steps[i].Object)
		if err := p.intend(steps[i].Step); err != nil {
			return err
		}
	}
	if why := p.killSwitch(); why != "" {
		return p.stopFor("%s", why)
	}
	err := action.Prepare(ctx, p.tools, objects)
	switch {
	case errors.Is(err, hand.ErrChanged):
		return p.stopFor("%v", err)
	case err != nil && p.interrupted(ctx):
		return errStop
	case err != nil:
		return err // of a fault point
	}
	return nil
}

func (p *podRelease) intend(step Step) error {
	return p.journal.write(Record{
		At: p.options.Host.Clock(), Event: Intent, Group: p.outcome.Group, Pod: step.Pod, Kind: step.Kind, ID: step.ID,
		Identity: step.Object.Identity, Does: step.Does,
	})
}

// one does one step: guards, intent, the step, verification, end.
func (p *podRelease) one(ctx context.Context, action Action, s *StepOutcome) (busy bool, err error) {
	if p.interrupted(ctx) {
		return false, errStop
	}
	if why := p.killSwitch(); why != "" {
		return false, p.stopFor("%s", why)
	}
	if err := p.intend(s.Step); err != nil {
		return false, err
	}
	if err := p.tools.Hit("intent: " + string(s.Kind)); err != nil {
		return false, err
	}
	p.options.Log.Info("releasing", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "action", s.Does)
	failure := action.Do(ctx, p.tools, s.Object)
	if crash := (cut{}); errors.As(failure, &crash) {
		return false, crash
	}
	if err := p.tools.Hit("done: " + string(s.Kind)); err != nil {
		return false, err
	}
	if failure == nil {
		failure = p.verify(ctx, action, s.Object)
	}
	s.Result, s.Error = resultOfDo(failure)
	end := Record{
		At: p.options.Host.Clock(), Event: End, Group: p.outcome.Group, Pod: s.Pod, Kind: s.Kind, ID: s.ID,
		Result: s.Result, Why: s.Error,
	}
	if err := p.journal.write(end); err != nil {
		return false, err
	}
	if failure != nil {
		p.options.Log.Warn("not released", "pod", s.Pod.UID, "kind", s.Kind, "id", s.ID, "err", failure)
	}
	if err := p.tools.Hit("end: " + string(s.Kind)); err != nil {
		return false, err
	}
	if errors.Is(failure, hand.ErrChanged) {
		return false, p.stopFor("%v", failure)
	}
	return errors.Is(failure, hand.ErrBusy), nil
}

func resultOfDo(failure error) (Result, string) {
	var refusal hand.Refusal
	switch {
	case failure == nil:
		return Released, ""
	case errors.As(failure, &refusal):
		return Refused, refusal.Why
	}
	return Failed, clip(failure.Error())
}

// clip keeps what a plugin or a runtime says to a size that fits the journal.
func clip(text string) string {
	const most = 4 << 10
	return text[:min(len(text), most)]
}

// verify waits until the object is gone.
func (p *podRelease) verify(ctx context.Context, action Action, o inspect.Judged) error {
	gone := false
	err := poll(ctx, p.options.Settings.VerifyWithin, func() (done bool, err error) {
		gone, err = action.Gone(ctx, p.tools, o)
		return gone, err
	})
	if err == nil && !gone {
		err = errors.New("it is still there")
	}
	return err
}

// poll calls look until it is done, fails, or most of time is over.
func poll(ctx context.Context, most time.Duration, look func() (bool, error)) error {
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	tick := time.NewTicker(min(max(most/20, 20*time.Millisecond), time.Second))
	defer tick.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return nil
		case <-tick.C:
		}
	}
}
