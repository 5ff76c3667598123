package program

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// pipeGrace is how long the output of a program that has ended is still read: somebody who left its process group may
// hold the pipe for ever.
const pipeGrace = 500 * time.Millisecond

// process is one child in a process group of its own.
type process struct {
	cmd     *exec.Cmd
	started func()        // called when it has been started, or could not be; may be nil
	reaped  func()        // called just before done is closed; may be nil
	done    chan struct{} // closed when it is reaped, or could not be started
	err     error         // set before done is closed

	mu     sync.Mutex // guards begun, killed and ended
	begun  bool
	killed bool
	ended  bool // it is about to be reaped: afterwards its number may be another's
}

func newProcess(c Command) *process {
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	return &process{done: make(chan struct{}), cmd: &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: dir, Env: environment(os.Environ()),
		WaitDelay: pipeGrace,
		// When the agent dies, so does the program. The kernel ties this to the thread that started it.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}}
}

// run starts the program and waits for it. Even the start can hang: it reads the program's file. It runs in a
// goroutine of its own for this reason. A program that others than root can change is not started.
func (p *process) run() {
	defer func() {
		if p.reaped != nil {
			p.reaped()
		}
		close(p.done)
	}()
	if p.err = owned.Program(p.cmd.Path); p.err == nil {
		p.err = p.cmd.Start()
	}
	if p.started != nil {
		p.started()
	}
	if p.err != nil {
		return
	}
	pid := p.cmd.Process.Pid
	spareAgent(pid)
	p.mu.Lock()
	p.begun = true
	if p.killed {
		_ = unix.Kill(-pid, unix.SIGKILL) // it has not been reaped, so the group is ours
	}
	p.mu.Unlock()
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	p.mu.Lock()
	p.ended = true
	_ = unix.Kill(-pid, unix.SIGKILL) // what it left behind; the number is its own until it is reaped
	p.mu.Unlock()
	p.err = p.cmd.Wait()
}

// killWait kills the process group and reports whether the program is gone within the grace.
func (p *process) killWait() bool {
	p.mu.Lock()
	p.killed = true
	if p.begun && !p.ended {
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) // it may just have ended
	}
	p.mu.Unlock()
	grace := time.NewTimer(killGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return true
	case <-grace.C:
		return false
	}
}

// spareAgent makes the kernel kill the program before the agent when memory is short: a child inherits the protection
// that the agent has.
func spareAgent(pid int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("500"), 0) // it may be gone already
}

// environment returns what a program finds: what the agent has, without what is meant for the agent alone.
func environment(own []string) []string {
	var kept []string
	path := false
	for _, entry := range own {
		name, _, _ := strings.Cut(entry, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
			"INVOCATION_ID",
			"JOURNAL_STREAM", "MAINPID", "GOMEMLIMIT", "GOMAXPROCS", "GOGC", "GODEBUG":
			continue
		case "PATH":
			path = true
		}
		kept = append(kept, entry)
	}
	if !path {
		kept = append(kept, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return kept
}

// head keeps the beginning of what is written, and takes in the rest: a program must not hang because nobody reads.
type head struct {
	limit int
	mu    sync.Mutex // guards kept: an abandoned writer may still write
	kept  []byte
}

// Write implements io.Writer; it never fails.
func (h *head) Write(data []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, data[:min(len(data), h.limit-len(h.kept))]...)
	return len(data), nil
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]byte(nil), h.kept...)
}

// ending words how a program that ought not to end has ended.
func (p *process) ending(errs *head) error {
	said := strings.TrimSpace(strings.ToValidUTF8(string(errs.bytes()), "\uFFFD"))
	if p.cmd.ProcessState == nil {
		return fmt.Errorf("%s: %w", p.cmd.Path, p.err)
	}
	return fmt.Errorf("%s ended: %s: %s", p.cmd.Path, p.cmd.ProcessState, said)
}
