// Package program runs other parties' programs for checks: plugins that users configure, and journalctl. Each is one
// absolute path with its arguments, never a shell; it runs only if root alone can change it (see package owned); and
// its output is bounded. A program that hangs, ignores signals or leaves children behind affects only itself: its whole
// process group is killed. If even that does not end it, it is abandoned, and not started again before the kernel has
// released it.
package program

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Command is a program with its arguments.
type Command struct {
	Path string // absolute
	Args []string
	Dir  string // working directory; "/" unless set
}

// Outcome is the result of a run.
type Outcome struct {
	Exit   int    // exit code; -1 if a signal ended it
	State  string // the same as text: "exit status 1", "signal: killed"
	Stdout []byte // the first MaxOutput bytes
	Stderr []byte // the first MaxOutput bytes
	// TimedOut means that the program was killed, with its process group, because its time was up.
	TimedOut bool
}

// MaxOutput is how much of a program's output is kept, of each of its two streams, as in node-problem-detector.
const MaxOutput = 4 << 10

var (
	// ErrAbandoned means that a program did not end when killed: it hangs in the kernel.
	ErrAbandoned = errors.New("it was killed and does not end: it hangs in the kernel")
	// ErrStuck means that a program is not started because its last run still hangs in the kernel.
	ErrStuck = errors.New("its last run was killed and still hangs in the kernel")
)

// killGrace is how long a killed program may take to exit before it is abandoned.
const killGrace = time.Second

// Runner runs one program, once at a time. The zero value is ready.
type Runner struct{ running atomic.Bool }

// Run runs the program until it ends, or until ctx does: then the program is killed with its process group. An error
// means that the outcome is unknown: the program could not be started, or does not end.
func (r *Runner) Run(ctx context.Context, c Command) (Outcome, error) {
	if !filepath.IsAbs(c.Path) {
		return Outcome{}, fmt.Errorf("run %q: not an absolute path", c.Path)
	}
	if !r.running.CompareAndSwap(false, true) {
		return Outcome{}, fmt.Errorf("run %s: %w", c.Path, ErrStuck)
	}
	out, errs := &head{limit: MaxOutput}, &head{limit: MaxOutput}
	p := newChild(c)
	p.Cmd.Stdout, p.Cmd.Stderr = out, errs
	p.Reaped = func() { r.running.Store(false) }
	p.Start()
	timedOut := false
	select {
	case <-p.done:
	case <-ctx.Done():
		timedOut = true
		if !p.Kill(killGrace) {
			return Outcome{TimedOut: true}, fmt.Errorf("run %s: %w", c.Path, ErrAbandoned)
		}
	}
	if p.Cmd.ProcessState == nil {
		return Outcome{TimedOut: timedOut}, fmt.Errorf("run %s: %w", c.Path, p.err)
	}
	return Outcome{
		Exit: p.Cmd.ProcessState.ExitCode(), State: p.Cmd.ProcessState.String(),
		Stdout: out.bytes(), Stderr: errs.bytes(), TimedOut: timedOut,
	}, nil
}
