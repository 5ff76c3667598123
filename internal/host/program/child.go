package program

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child supervises one child process in its own process group: other parties' programs, and the agent's own binary for
// calls that may hang in the kernel. Its hooks run in its own goroutine, and may be nil.
type Child struct {
	Cmd     *exec.Cmd
	Before  func() error // may refuse the start
	Started func()       // after the start, or its failure
	Reaped  func()       // before Done is closed
	Sweep   bool         // after it has ended by itself, kill the rest of its process group
	Inline  bool         // Start starts it synchronously: in the namespaces of its thread, and never after Kill

	done chan struct{}
	err  error // set before done is closed

	mu     sync.Mutex // guards begun, killed and ended
	begun  bool
	killed bool
	ended  bool // about to be reaped: afterwards its PID may be another's
}

// Start returns at once, unless Inline: even the start can hang, because it reads the program's file. Call it once.
func (c *Child) Start() {
	c.done = make(chan struct{})
	if c.Cmd.SysProcAttr == nil {
		c.Cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.Cmd.SysProcAttr.Setpgid = true
	if c.Inline {
		c.begin()
		go c.wait()
		return
	}
	go func() { c.begin(); c.wait() }() // until it is reaped, however long that takes
}

// Done is closed when the child is reaped, or could not be started.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err is valid once Done is closed: why the start failed, or how the child ended, as from exec.Cmd.Wait.
func (c *Child) Err() error { return c.err }

func (c *Child) begin() {
	if c.Before != nil {
		c.err = c.Before()
	}
	c.mu.Lock()
	if c.err == nil && c.killed {
		c.err = errors.New("killed before it was started")
	}
	c.mu.Unlock()
	if c.err == nil {
		warm(c.Cmd.Path, c.Cmd.Dir)
		c.err = c.Cmd.Start()
	}
	if c.Started != nil {
		c.Started()
	}
	if c.err != nil {
		return
	}
	c.mu.Lock()
	c.begun = true
	if c.killed {
		_ = unix.Kill(-c.Cmd.Process.Pid, unix.SIGKILL) // it has not been reaped, so the group is ours
	}
	c.mu.Unlock()
}

func (c *Child) wait() {
	defer func() {
		if c.Reaped != nil {
			c.Reaped()
		}
		close(c.done)
	}()
	if c.err != nil {
		return
	}
	pid := c.Cmd.Process.Pid
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	c.mu.Lock()
	c.ended = true
	if c.Sweep || c.killed {
		_ = unix.Kill(-pid, unix.SIGKILL) // the PID is its own until it is reaped
	}
	c.mu.Unlock()
	c.err = c.Cmd.Wait()
}

// Kill kills the process group and reports whether the child is gone within the grace. Otherwise it hangs in the
// kernel, and is reaped whenever it ends.
func (c *Child) Kill(grace time.Duration) bool {
	c.mu.Lock()
	c.killed = true
	if c.begun && !c.ended {
		_ = unix.Kill(-c.Cmd.Process.Pid, unix.SIGKILL) // it may just have ended
	}
	c.mu.Unlock()
	limit := time.NewTimer(grace)
	defer limit.Stop()
	select {
	case <-c.done:
		return true
	case <-limit.C:
		return false
	}
}

// Buffer stores a child's output, and refuses more than Limit bytes. A hanging child may still write to it.
type Buffer struct {
	Limit int

	mu   sync.Mutex // guards data
	data bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data.Len()+len(data) > b.Limit {
		return 0, fmt.Errorf("more than %d bytes of output", b.Limit)
	}
	return b.data.Write(data)
}

// Bytes returns the output so far.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Bytes()
}
