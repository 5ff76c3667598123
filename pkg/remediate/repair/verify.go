package repair

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// checkEvery is how often the check runs again while a repair is verified and held.
const checkEvery = 10 * time.Second

// verify runs the check until it stops finding the fault, and then for the hold time. Only the check counts; the step's
// own message is passed on.
func (t *try) verify(ctx context.Context, note string) (release.Result, string) {
	settings := t.options.Settings
	within := settings.VerifyWithin + t.step.action.Settle
	begin, clearSince, asked := time.Now(), time.Time{}, time.Time{}
	doubt := ""
	for {
		here, err := t.faulty(ctx)
		if ctx.Err() != nil {
			return release.Interrupted, "the agent ended, or its configuration was changed, before it was verified"
		}
		now := time.Now()
		switch {
		case err != nil:
			doubt = err.Error()
		case here && !clearSince.IsZero():
			return release.Failed, fmt.Sprintf("the fault was gone, and is back after %s",
				now.Sub(clearSince).Round(time.Second))
		case here:
			asked, doubt = now, ""
		default:
			asked, doubt = now, ""
			if clearSince.IsZero() {
				clearSince = now
			}
		}
		switch {
		case !clearSince.IsZero() && asked.Sub(clearSince) >= settings.Hold:
			return Verified, note
		case clearSince.IsZero() && now.Sub(begin) >= within && doubt == "":
			return release.Failed, withNote(fmt.Sprintf("the fault is still there after %s",
				now.Sub(begin).Round(time.Second)), note)
		case now.Sub(begin) >= within+settings.Hold+askLimit:
			return release.CouldNotTell, withNote("cannot tell whether it helped: "+doubt, note)
		}
		wait := time.NewTimer(min(checkEvery, max(settings.Hold/5, time.Millisecond)))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

func withNote(why, note string) string {
	if note == "" {
		return why
	}
	return why + "; the step reported: " + note
}
