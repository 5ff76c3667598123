package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is the agent as a process of the host, started like by a package.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (p *process) start(ctx context.Context, a *Agent, env []string) error {
	log, err := os.OpenFile(a.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(a.Binary, "run", "--config", a.Config) // it outlives this call; stop ends it
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if the test is killed, so is the agent
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }() // the exit code is in cmd.ProcessState
	p.cmd, p.done = cmd, done
	return WaitFor(ctx, "the agent to answer", func() error {
		select {
		case <-done:
			return fmt.Errorf("the agent has ended: %v\n%s", cmd.ProcessState, a.LogTail())
		default:
		}
		_, err := a.Status(ctx)
		return err
	})
}

func (p *process) stop(*Agent) error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		return errors.Join(errors.New("the agent did not end within a minute of SIGTERM"), p.cmd.Process.Kill())
	}
}

func (p *process) kill(*Agent) error {
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// PID of the process that Start started on the host.
func (a *Agent) PID() int {
	if p, ok := a.installed().(*process); ok && p.cmd != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Done is closed when the process that Start started on the host has ended.
func (a *Agent) Done() <-chan struct{} {
	if p, ok := a.installed().(*process); ok {
		return p.done
	}
	return nil
}

// LogFile is the log file of the process.
func (a *Agent) LogFile() string { return filepath.Join(a.Dir, "agent.log") }

// LogTail returns the end of the agent's log.
func (a *Agent) LogTail() string {
	if set, ok := a.installed().(*daemonSet); ok {
		return set.log(a)
	}
	data, err := os.ReadFile(a.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}
