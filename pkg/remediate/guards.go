package remediate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// killSwitch returns why nothing may be done: the file that stops everything exists, or nobody can say whether it does.
func (r *Runner) killSwitch() string {
	name := r.options.Settings.KillSwitch
	_, err := r.options.Host.Files.Read(name)
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
	why, err := r.options.Paused(ctx)
	if err != nil {
		return fmt.Sprintf("whether releasing is paused cannot be told: %v", err)
	}
	return why
}
