package actions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// processAction ends the processes left in the cgroups of a pod. They are thawed first, because a frozen process of
// cgroup v1 cannot be killed, and all get SIGTERM before the first is killed. A process that survives SIGKILL hangs in
// the kernel: it is reported with its wait channel and not killed in a loop.
func processAction() Action {
	return Action{
		Kind: object.Process,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			if o.IsDead() {
				return "", "it is dead, and disappears when its parent reaps it"
			}
			return fmt.Sprintf("thaw process %s (%s) if it is frozen, SIGTERM, after %s SIGKILL", o.ID,
				o.Facts["command"], s.ProcessGrace), ""
		},
		Prepare: terminateAll,
		Do:      killProcess,
		Verify: func(_ context.Context, t Tools, o object.Assessment) (bool, error) {
			return t.Mutator.Ended(processOf(o))
		},
	}
}

// terminateAll sends SIGTERM to all processes of a pod and gives them one common grace period. It ignores an error
// about one process: killProcess will meet and report it again.
func terminateAll(ctx context.Context, t Tools, all []object.Assessment) error {
	var asked []mutate.Process
	for _, o := range all {
		if err := identified(o); err != nil {
			return err
		}
		p := processOf(o)
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

func killProcess(ctx context.Context, t Tools, o object.Assessment) error {
	p := processOf(o)
	if ended, err := t.Mutator.Ended(p); ended || err != nil {
		return err
	}
	if _, err := t.Mutator.Thaw(p); err != nil { // it may have been frozen again meanwhile
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
