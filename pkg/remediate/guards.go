package remediate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// The bounds of what could hang while the lock is held.
const (
	askLimit  = 2 * time.Minute  // one question to the witnesses or the apiserver
	stepLimit = 15 * time.Minute // one step: of a sandbox, many containers with their grace, and CNI
)

// killSwitch returns why nothing may be done: the file that stops everything exists, or nobody can say whether it does.
func (r *Runner) killSwitch() string {
	name := r.options.Settings.KillSwitch
	_, err := r.options.Host.Files.Stat(name) // whatever it is: nothing of it is read
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err == nil:
		return fmt.Sprintf("the kill switch %s is there", name)
	}
	return fmt.Sprintf("the kill switch %s may be there: %v", name, err)
}

// stop returns why nothing may be done now. It may ask the apiserver.
func (r *Runner) stop(ctx context.Context) string {
	if why := r.killSwitch(); why != "" {
		return why
	}
	if err := ctx.Err(); err != nil {
		return "interrupted"
	}
	if r.options.Paused == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	why, err := r.options.Paused(ctx)
	if err != nil {
		return fmt.Sprintf("whether releasing is paused cannot be told: %v", err)
	}
	return why
}

// guard is passed right before every change: the agent is not ending, the pod has not come back, the lock is still
// ours, and nobody has made the kill switch. It comes after the intent, since writing that may have taken long.
func (p *podRelease) guard(ctx context.Context, pod inspect.Pod) error {
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err := p.options.StillGone(asking, pod)
	if p.interrupted(ctx) {
		return errStop
	}
	if err != nil {
		return p.stopFor("asked right before the step: %v", err)
	}
	if err := p.held(); err != nil {
		return p.stopFor("another release may be running: %v", err)
	}
	if why := p.killSwitch(); why != "" {
		return p.stopFor("%s", why)
	}
	return nil
}
