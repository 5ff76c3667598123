package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Time limits for calls that could hang while the lock is held.
const (
	askLimit  = 2 * time.Minute  // one request to the witnesses or the apiserver
	stepLimit = 15 * time.Minute // one step: of a sandbox, many containers with their grace, and CNI
)

// KillSwitch returns why all releases are stopped.
func (r *Runner) KillSwitch() string {
	return KillSwitch(r.options.Host.Files, r.options.Settings.KillSwitch)
}

// KillSwitch returns why all changes are stopped: a file exists, or its existence is unknown.
func KillSwitch(files host.Files, name string) string {
	return firstClosed([]Guard{killSwitchGuard(files, name)})
}

// killSwitchGuard is unknown if the file's existence cannot be determined.
func killSwitchGuard(files host.Files, name string) Guard {
	_, err := files.Stat(name) // any type of file: its content is not read
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return answer("kill-switch", "", name+" does not exist")
	case err == nil:
		return answer("kill-switch", fmt.Sprintf("the kill switch %s exists", name), "")
	}
	return Guard{Name: "kill-switch", Why: fmt.Sprintf("the kill switch %s may exist: %v", name, err), Unknown: true}
}

// paused returns whether releases are paused. It may make a request to the apiserver.
func (r *Runner) paused(ctx context.Context) Guard {
	const name, open = "pause", "no annotation of the Node pauses releases"
	if err := ctx.Err(); err != nil {
		return answer(name, "interrupted", "")
	}
	if r.options.Paused == nil {
		return answer(name, "", open)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	why, err := r.options.Paused(ctx)
	if err != nil {
		return Guard{Name: name, Why: fmt.Sprintf("whether releases are paused is not known: %v", err), Unknown: true}
	}
	return answer(name, why, open)
}

// guard checks right before every change that the agent is not shutting down, the pod has not come back, the lock is
// still held, and the kill switch does not exist. It runs after the intent, since writing that may take long.
func (p *podRelease) guard(ctx context.Context, pod object.Pod) {
	if p.over() {
		return
	}
	asking, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err := p.options.StillGone(asking, pod)
	if p.interrupted(ctx) {
		return
	}
	if err != nil {
		p.stopFor("checked right before the step: %v", err)
	} else if err := p.held(); err != nil {
		p.stopFor("another release may be running: %v", err)
	} else if why := p.KillSwitch(); why != "" {
		p.stopFor("%s", why)
	}
}
