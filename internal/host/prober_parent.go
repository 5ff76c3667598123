package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrTooManyAbandoned says that so many probes hang in the kernel that no further one is started.
var ErrTooManyAbandoned = errors.New("too many probes hang in the kernel")

const (
	// maxProbes bounds the children that exist at any time, hung ones included. More would help nobody: one dead disk or
	// server is enough to hang them all, and each is a process that people see in state D.
	maxProbes = 3
	// probeTimeout bounds a probe whose context has no deadline.
	probeTimeout = 10 * time.Second
	// reapGrace is how long a killed child may take to go before it is abandoned.
	reapGrace = time.Second
	// maxProbeAnswer bounds what a child may say. The ports of 32 InfiniBand cards are about 20 KiB.
	maxProbeAnswer = 64 << 10
)

// NewProber returns a prober whose children are this program itself: main must begin with ProbeMain.
func NewProber() Prober {
	p := &prober{slots: make(chan struct{}, maxProbes), program: "/proc/self/exe"}
	return Prober{Do: p.do}
}

type prober struct {
	program string
	slots   chan struct{} // one taken for each child from its start until it is reaped

	mu        sync.Mutex // guards abandoned
	abandoned int        // children that did not go when killed
}

func (p *prober) do(ctx context.Context, request ProbeRequest) (ProbeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	failed := func(err error) (ProbeAnswer, error) {
		return ProbeAnswer{}, fmt.Errorf("probe %s %s: %w", request.Op, request.Path, err)
	}
	if p.stuck() {
		return failed(ErrTooManyAbandoned)
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		if p.stuck() {
			return failed(ErrTooManyAbandoned)
		}
		return failed(ctx.Err())
	}
	child, err := newProbeChild(p.program, request)
	if err != nil {
		<-p.slots
		return failed(err)
	}
	go child.run(p) // supervises one child until it is reaped
	select {
	case <-child.done:
		answer, err := child.answer()
		if err != nil {
			return failed(err)
		}
		return answer, nil
	case <-ctx.Done():
	}
	child.kill()
	select {
	case <-child.done:
	case <-time.After(reapGrace):
		p.abandon(child)
	}
	return failed(ctx.Err())
}

// stuck reports whether no child can be started before an abandoned one goes.
func (p *prober) stuck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.abandoned >= maxProbes
}

// abandon leaves a child to its goroutine, which reaps it whenever the kernel frees it.
func (p *prober) abandon(c *probeChild) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-c.done: // it went in the very last moment
	default:
		c.abandoned = true
		p.abandoned++
	}
}

// reaped frees what the child held.
func (p *prober) reaped(c *probeChild) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.abandoned {
		p.abandoned--
	}
	close(c.done)
	<-p.slots
}

// probeChild is one child process.
type probeChild struct {
	cmd       *exec.Cmd
	out, errs boundedBuffer
	done      chan struct{} // closed when the child is reaped, or could not be started
	err       error         // set before done is closed
	abandoned bool          // guarded by prober.mu

	mu     sync.Mutex // guards begun and killed
	begun  bool
	killed bool
}

func newProbeChild(program string, request ProbeRequest) (*probeChild, error) {
	argument, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	c := &probeChild{done: make(chan struct{})}
	c.cmd = &exec.Cmd{
		Path: program,
		Args: []string{probeName, string(argument)},
		// Nothing of our environment; and one thread, no garbage collection, so that a probe is cheap.
		Env:    []string{"GOMAXPROCS=1", "GOGC=off"},
		Dir:    "/",
		Stdout: &c.out,
		Stderr: &c.errs,
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid: true,
			// When the agent dies, so do its probes. The kernel ties this to the thread that started the child; should
			// that one end early, the probe is killed, which the next look mends.
			Pdeathsig: syscall.SIGKILL,
		},
	}
	return c, nil
}

// run starts the child and waits for it. Even the start can hang: it reads the program's file, and its thread waits for
// that in the kernel. It has a goroutine of its own for this reason.
func (c *probeChild) run(p *prober) {
	defer p.reaped(c)
	if c.err = c.cmd.Start(); c.err != nil {
		return
	}
	c.mu.Lock()
	c.begun = true
	if c.killed {
		_ = c.cmd.Process.Kill() // it has not been waited for, so it is ours
	}
	c.mu.Unlock()
	c.err = c.cmd.Wait()
}

func (c *probeChild) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
	if c.begun {
		_ = c.cmd.Process.Kill() // an error means that it is reaped already
	}
}

// answer is called after done was closed.
func (c *probeChild) answer() (ProbeAnswer, error) {
	if c.err != nil {
		return ProbeAnswer{}, fmt.Errorf("%w: %s", c.err, strings.TrimSpace(c.errs.String()))
	}
	var answer ProbeAnswer
	if err := json.Unmarshal(c.out.Bytes(), &answer); err != nil {
		return ProbeAnswer{}, fmt.Errorf("answer %q: %w", clip(c.out.String()), err)
	}
	return answer, nil
}

// boundedBuffer keeps what a child says and refuses more than that.
type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(data []byte) (int, error) {
	if b.Len()+len(data) > maxProbeAnswer {
		return 0, fmt.Errorf("more than %d bytes of output", maxProbeAnswer)
	}
	return b.Buffer.Write(data)
}
