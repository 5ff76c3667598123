// Package program runs programs of others for checks: plugins that users configure, and journalctl. Each is one
// absolute path with its arguments, never a shell; it is run only where no one but root can change it (see package
// owned); its output is bounded; and one that hangs, ignores signals or leaves children behind costs only itself: its
// whole process group is killed, and what even that does not end is abandoned and not started again before the kernel
// has let it go.
package program

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Command is a program with its arguments.
type Command struct {
	Path string // absolute
	Args []string
	Dir  string // working directory; "/" unless set
}

// Outcome is how a run ended.
type Outcome struct {
	Exit   int    // exit code; -1 where a signal ended it
	State  string // the same for people: "exit status 1", "signal: killed"
	Stdout []byte // the first MaxOutput bytes
	Stderr []byte // the first MaxOutput bytes
	// TimedOut says that it was killed, with its process group, because the time was up.
	TimedOut bool
}

// MaxOutput is how much of what a program prints is kept, of each of its two streams: as node-problem-detector.
const MaxOutput = 4 << 10

var (
	// ErrAbandoned says that a program did not end when it was killed: it hangs in the kernel.
	ErrAbandoned = errors.New("it was killed and does not end: it hangs in the kernel")
	// ErrStuck says that a program is not started because its last run still hangs in the kernel.
	ErrStuck = errors.New("its last run was killed and still hangs in the kernel")
)

// killGrace is how long a killed program may take to go before it is abandoned.
const killGrace = time.Second

// Runner runs one program, once at a time. The zero value is ready.
type Runner struct {
	mu      sync.Mutex // guards running
	running bool
}

// Run runs the program until it ends, or until ctx does: then it is killed with its process group. An error says that
// nothing is known: it could not be started, or does not end.
func (r *Runner) Run(ctx context.Context, c Command) (Outcome, error) {
	if !filepath.IsAbs(c.Path) {
		return Outcome{}, fmt.Errorf("run %q: not an absolute path", c.Path)
	}
	if !r.begin() {
		return Outcome{}, fmt.Errorf("run %s: %w", c.Path, ErrStuck)
	}
	out, errs := &head{limit: MaxOutput}, &head{limit: MaxOutput}
	p := newChild(c)
	p.Cmd.Stdout, p.Cmd.Stderr = out, errs
	p.Reaped = r.end
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

func (r *Runner) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return false
	}
	r.running = true
	return true
}

func (r *Runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
}
