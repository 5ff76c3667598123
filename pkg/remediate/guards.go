package remediate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Limits for what could hang while the lock is held.
const (
	askLimit  = 2 * time.Minute  // one request to the witnesses or the apiserver
	stepLimit = 15 * time.Minute // one step: of a sandbox, many containers with their grace, and CNI
)

// KillSwitch returns why nothing may be done: the kill switch exists, or it is not known whether it does.
func (r *Runner) KillSwitch() string {
	return KillSwitch(r.options.Host.Files, r.options.Settings.KillSwitch)
}

// KillSwitch returns why nothing may be done while a file exists.
func KillSwitch(files host.Files, name string) string {
	_, err := files.Stat(name) // any type of file: its content is not read
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err == nil:
		return fmt.Sprintf("the kill switch %s exists", name)
	}
	return fmt.Sprintf("the kill switch %s may exist: %v", name, err)
}

// stop returns why nothing may be done now. It may make a request to the apiserver.
func (r *Runner) stop(ctx context.Context) string {
	if why := r.KillSwitch(); why != "" {
		return why
	}
	return r.paused(ctx)
}

// paused returns why releases are paused. It may make a request to the apiserver.
func (r *Runner) paused(ctx context.Context) string {
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
		return fmt.Sprintf("whether releases are paused is not known: %v", err)
	}
	return why
}

// guard checks right before every change that the agent is not shutting down, the pod has not come back, the lock is
// still held, and the kill switch does not exist. It comes after the intent, since writing that may take long.
func (p *podRelease) guard(ctx context.Context, pod inspect.Pod) error {
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err := p.options.StillGone(asking, pod)
	if p.interrupted(ctx) {
		return errStop
	}
	if err != nil {
		return p.stopFor("checked right before the step: %v", err)
	}
	if err := p.held(); err != nil {
		return p.stopFor("another release may be running: %v", err)
	}
	if why := p.KillSwitch(); why != "" {
		return p.stopFor("%s", why)
	}
	return nil
}
