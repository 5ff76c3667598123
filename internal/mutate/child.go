package mutate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// maxAbandoned is how many children may hang in the kernel at once. A process in the D state cannot be killed.
const maxAbandoned = 3

const (
	killGrace      = 2 * time.Second // how long a killed child may take to exit before it is abandoned
	maxChildOutput = 64 << 20        // bytes; the longest answer lists a tree
)

// children starts child processes and gives up on those that hang.
type children struct {
	limit time.Duration // for one child

	mu        sync.Mutex // guards abandoned
	abandoned int
}

// do makes a child make one change. An error means that the change was not made, or that this is unknown.
func (d *Mutator) do(ctx context.Context, r child.Request) (child.Answer, error) {
	return d.doIn(ctx, &d.children, r)
}

// doIn is do with other children, which have their own limit.
func (d *Mutator) doIn(ctx context.Context, c *children, r child.Request) (child.Answer, error) {
	input, err := json.Marshal(r)
	if err != nil {
		return child.Answer{}, err
	}
	output, err := c.run(ctx, &exec.Cmd{
		Path:  "/proc/self/exe", // the running file, whatever its name refers to now
		Args:  []string{child.Name},
		Dir:   "/",
		Env:   childEnv,
		Stdin: bytes.NewReader(input),
	})
	if err != nil {
		return child.Answer{}, fmt.Errorf("%s: %w", r.Op, err)
	}
	var a child.Answer
	if err := json.Unmarshal(output, &a); err != nil {
		return child.Answer{}, fmt.Errorf("%s: answer of the child: %w", r.Op, err)
	}
	return a, errorOf(a, r.Op)
}

// errorOf turns an answer into an error that callers can branch on.
func errorOf(a child.Answer, op child.Operation) error {
	switch a.Outcome {
	case child.OutcomeDone, child.OutcomeGone:
		return nil
	case child.OutcomeRefused:
		return Refusal{Why: a.Why}
	case child.OutcomeChanged:
		return changed("%s", a.Why)
	case child.OutcomeHarm:
		return child.Harm{Why: a.Why}
	}
	errno := syscall.Errno(a.Errno)
	if errno == unix.EBUSY || errno == unix.ENOTEMPTY {
		return fmt.Errorf("%s: %s: %w: %w", op, a.Why, errno, ErrBusy)
	}
	return fmt.Errorf("%s: %s: %w", op, a.Why, errno)
}

// run starts a command and returns its output. If ctx or the limit ends first, the child is killed, and abandoned if
// even that does not end it.
func (c *children) run(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	c.mu.Lock()
	full := c.abandoned >= maxAbandoned
	c.mu.Unlock()
	if full {
		return nil, ErrTooManyAbandoned
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	output, complaint := program.Buffer{Limit: maxChildOutput}, program.Buffer{Limit: maxChildOutput}
	cmd.Stdout, cmd.Stderr = &output, &complaint
	cmd.WaitDelay = time.Second                     // a grandchild may keep the pipes open
	child := &program.Child{Cmd: cmd, Inline: true} // so that no change is made after run gave up
	child.Start()
	select {
	case <-child.Done():
		return result(output.Bytes(), complaint.Bytes(), child.Err())
	case <-ctx.Done():
	}
	if !child.Kill(killGrace) {
		c.abandon(child.Done())
	}
	return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
}

// abandon counts a hanging child until it ends after all.
func (c *children) abandon(ended <-chan struct{}) {
	c.mu.Lock()
	c.abandoned++
	c.mu.Unlock()
	go func() {
		<-ended
		c.mu.Lock()
		c.abandoned--
		c.mu.Unlock()
	}()
}

func result(output, complaint []byte, err error) ([]byte, error) {
	if err == nil {
		return output, nil
	}
	const most = 2000
	if text := bytes.TrimSpace(complaint); len(text) > 0 {
		return output, fmt.Errorf("%w: %s", err, text[:min(len(text), most)])
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(output) > 0 {
		return output, err
	}
	return nil, err
}
