package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/program"
)

// ErrTooManyAbandoned means that so many probes hang in the kernel that no further one is started.
var ErrTooManyAbandoned = errors.New("too many probes hang in the kernel")

const (
	// maxProbes bounds the children at any time, hung ones included. More would not help: one dead disk or server is
	// enough to hang them all, and each is visible as a process in state D.
	maxProbes = 3
	// probeTimeout bounds a probe whose context has no deadline.
	probeTimeout = 10 * time.Second
	// reapGrace is how long a killed child may take to exit before it is abandoned.
	reapGrace = time.Second
	// maxProbeOutput and maxProbeLine, for each request, bound a child's output. The ports of 32 InfiniBand cards are
	// about 20 KiB.
	maxProbeOutput = 128 << 10
	maxProbeLine   = 64 << 10
)

// NewProber returns a prober whose children are this program itself: a child does its work in init.
func NewProber() Prober {
	p := &prober{slots: make(chan struct{}, maxProbes), path: "/proc/self/exe"}
	return Prober{Do: p.do, Batch: p.all}
}

type prober struct {
	path  string        // of the program
	slots chan struct{} // one taken for each child from start to reaping

	mu        sync.Mutex // guards abandoned
	abandoned int        // children that stayed after SIGKILL
}

func (p *prober) do(ctx context.Context, request ProbeRequest) (ProbeAnswer, error) {
	result := p.part(ctx, 0, []ProbeRequest{request})[0]
	return result.Answer, result.Err
}

func (p *prober) all(ctx context.Context, patience time.Duration, requests []ProbeRequest) []ProbeResult {
	results := make([]ProbeResult, 0, len(requests))
	for _, part := range batches(requests) {
		// One call leaves at most one child behind.
		if slices.ContainsFunc(results, func(r ProbeResult) bool { return r.Ended != nil }) {
			results = append(results, failed(part, ErrTooManyAbandoned)...)
			continue
		}
		results = append(results, p.part(ctx, patience, part)...)
	}
	return results
}

// part asks one child. An unanswered request gets the error that ended the child.
func (p *prober) part(ctx context.Context, patience time.Duration, requests []ProbeRequest) []ProbeResult {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout+patience)
	defer cancel()
	child, err := p.take(ctx, patience, requests)
	if err != nil {
		return failed(requests, err)
	}
	child.Reaped = func() { p.reaped(child) }
	child.Start()
	var ended <-chan struct{}
	select {
	case <-child.Done():
		err = child.failure()
	case <-child.out.complete: // the child now exits, or hangs
		ended, err = p.end(child), errNoAnswer
	case <-ctx.Done():
		ended, err = p.end(child), ctx.Err()
	}
	results := failed(requests, err)
	if parseErr := child.out.parse(results, requests, patience, ended); parseErr != nil {
		return failed(requests, parseErr)
	}
	return results
}

// take waits for the right to start a child.
func (p *prober) take(ctx context.Context, patience time.Duration, requests []ProbeRequest) (*probeChild, error) {
	if p.stuck() {
		return nil, ErrTooManyAbandoned
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		if p.stuck() {
			return nil, ErrTooManyAbandoned
		}
		return nil, ctx.Err()
	}
	child, err := newProbeChild(p.path, patience, requests)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return child, nil
}

// failed returns the same error for all requests.
func failed(requests []ProbeRequest, err error) []ProbeResult {
	results := make([]ProbeResult, len(requests))
	for i, r := range requests {
		results[i].Err = fmt.Errorf("probe %s %s: %w", r.Op, r.Path, err)
	}
	return results
}

// end kills a child that is no longer needed, or is out of time. The returned channel is nil if the child exited,
// otherwise it is closed when the child does.
func (p *prober) end(child *probeChild) <-chan struct{} {
	if child.out.healthy() { // it has answered all, and exits by itself
		select {
		case <-child.Done():
			return nil
		case <-time.After(reapGrace):
		}
	}
	if child.Kill(reapGrace) {
		return nil
	}
	p.abandon(child)
	return child.Done()
}

// stuck reports whether no child can be started before an abandoned one goes.
func (p *prober) stuck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.abandoned >= maxProbes
}

// abandon leaves a child to its goroutine, which reaps it when the kernel releases it.
func (p *prober) abandon(c *probeChild) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.reaped { // it may have exited at the last moment
		c.abandoned = true
		p.abandoned++
	}
}

// reaped frees the child's slot.
func (p *prober) reaped(c *probeChild) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.reaped = true
	if c.abandoned {
		p.abandoned--
	}
	<-p.slots
}

// probeChild is one child process.
type probeChild struct {
	*program.Child

	out  *probeOutput
	errs program.Buffer

	abandoned, reaped bool // guarded by prober.mu
}

func newProbeChild(path string, patience time.Duration, requests []ProbeRequest) (*probeChild, error) {
	batch := probeBatch{Patience: patience}
	for _, r := range requests {
		batch.Requests = append(batch.Requests, wireRequest{r, []byte(r.Path)})
	}
	argument, err := json.Marshal(batch)
	if err != nil {
		return nil, err
	}
	c := &probeChild{out: newProbeOutput(len(requests)), errs: program.Buffer{Limit: maxProbeLine}}
	c.Child = &program.Child{Cmd: &exec.Cmd{
		Path: path,
		Args: []string{ChildName, string(argument)},
		// No environment of ours, and one thread without garbage collection, so that a probe is cheap.
		Env:    []string{"GOMAXPROCS=1", "GOGC=off"},
		Dir:    "/",
		Stdout: c.out,
		Stderr: &c.errs,
		// When the agent dies, so do its probes. The kernel ties this to the thread that started the child; if that
		// thread ends early, the probe is killed, and the next run starts another.
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}}
	return c, nil
}

// failure returns why requests may be unanswered. It is called after done was closed.
func (c *probeChild) failure() error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(c.errs.Bytes()))
	}
	return errNoAnswer
}
