package program

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// pipeGrace is how long the output of an ended program is still read: a process that left its group may hold the pipe
// forever.
const pipeGrace = 500 * time.Millisecond

// newChild returns a Child for another party's program. It does not start one that users other than root can change.
// When the agent dies, so does the program: the kernel ties this to the thread that started it.
func newChild(c Command) *Child {
	cmd := &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: cmp.Or(c.Dir, "/"),
		Env: environment(os.Environ()), WaitDelay: pipeGrace,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	return &Child{
		Cmd: cmd, Sweep: true,
		Before: func() error { return owned.Program(c.Path) },
		Started: func() {
			if cmd.Process != nil {
				// When memory is short, the kernel should kill the program before the agent, whose protection the
				// program inherits. It may be gone already.
				_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("500"), 0)
			}
		},
	}
}

// environment returns the environment of a program: the agent's, without variables for the agent only.
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

// head stores the beginning of its input, and accepts the rest: a program must not hang because its output is not read.
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
	return bytes.Clone(h.kept)
}

// ending describes how a program ended that should not have.
func ending(p *Child, errs *head) error {
	text := strings.TrimSpace(strings.ToValidUTF8(string(errs.bytes()), "\uFFFD"))
	if p.Cmd.ProcessState == nil {
		return fmt.Errorf("%s: %w", p.Cmd.Path, p.err)
	}
	return fmt.Errorf("%s ended: %s: %s", p.Cmd.Path, p.Cmd.ProcessState, text)
}
