package remediate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// processAction ends processes that live on in the cgroups of a pod. They are thawed first, because a frozen process
// of cgroup v1 cannot be killed, and all are asked to end before the first one is killed. One that SIGKILL does not
// end waits in the kernel: it is told with what it waits in, and never tried in a loop.
func processAction() Action {
	return Action{
		Kind: inspect.Process, Order: 30,
		Summary: "thaw its cgroups, SIGTERM, wait, SIGKILL, each through a pidfd",
		Plan: func(o inspect.Assessment, s Settings) (string, string) {
			if isDead(o) {
				return "", "it is dead, and goes when its parent takes note of that"
			}
			return fmt.Sprintf("thaw process %s (%s) if it is frozen, SIGTERM, after %s SIGKILL", o.ID,
				o.Facts["command"], s.ProcessGrace), ""
		},
		Prepare: terminateAll,
		Do:      killProcess,
		Verify: func(_ context.Context, t Tools, o inspect.Assessment) (bool, error) {
			p, err := processOf(o)
			if err != nil {
				return false, err
			}
			return t.Mutator.Ended(p)
		},
	}
}

// isDead reports whether a process has ended and is only waiting for its parent. It holds nothing but its number;
// cgroup v2 goes on telling where it was.
func isDead(o inspect.Assessment) bool {
	return o.Kind == inspect.Process && (o.Facts["state"] == "Z" || o.Facts["state"] == "X")
}

// terminateAll asks all processes of a pod to end and gives them the grace together. What it cannot do to one,
// killProcess will find out again and tell.
func terminateAll(ctx context.Context, t Tools, all []inspect.Assessment) error {
	var asked []mutate.Process
	for _, o := range all {
		p, err := processOf(o)
		if err != nil {
			return err
		}
		thawed, err := t.Mutator.Thaw(p)
		if thawed {
			t.Log.Info("thawed", "pod", o.Pod.UID, "process", p.PID)
		}
		if err == nil {
			err = t.Mutator.Terminate(p)
		}
		if errors.Is(err, mutate.ErrChanged) {
			return err
		}
		if err == nil {
			asked = append(asked, p)
		}
	}
	if err := t.FaultPoint("process: SIGTERM sent"); err != nil {
		return err
	}
	end := time.Now().Add(t.Settings.ProcessGrace)
	for _, p := range asked {
		if _, err := t.Mutator.AwaitEnd(ctx, p, max(time.Until(end), 0)); err != nil {
			return err
		}
	}
	return nil
}

func killProcess(ctx context.Context, t Tools, o inspect.Assessment) error {
	p, err := processOf(o)
	if err != nil {
		return err
	}
	if ended, err := t.Mutator.Ended(p); ended || err != nil {
		return err
	}
	if _, err := t.Mutator.Thaw(p); err != nil { // somebody may have frozen it meanwhile
		return err
	}
	if err := t.Mutator.Kill(p); err != nil {
		return err
	}
	ended, err := t.Mutator.AwaitEnd(ctx, p, t.Settings.VerifyWithin)
	if err == nil && !ended {
		err = fmt.Errorf("SIGKILL does not end it: %s", t.Mutator.Stuck(p))
	}
	return err
}
