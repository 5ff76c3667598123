package mutate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Shim is the identity of a shim of containerd.
type Shim struct {
	PID       int
	StartTime uint64 // field 22 of /proc/PID/stat
	ID        string // of the sandbox or container that it was started for
}

// EndShim ends a shim whose container containerd has lost: SIGTERM, and after grace SIGKILL, both through a pidfd. The
// shim may have no child processes, which would be orphaned, and neither CRI nor containerd may have an object under
// its ID. It is no error if the shim is gone.
func (d *Mutator) EndShim(ctx context.Context, s Shim, grace time.Duration) error {
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		ended, err := d.signalShim(ctx, s, signal, grace)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("SIGKILL does not end it: %s", d.Stuck(Process{PID: s.PID, StartTime: s.StartTime}))
}

// signalShim checks everything about a shim, signals it, and reports whether it has ended within the time.
func (d *Mutator) signalShim(ctx context.Context, s Shim, signal unix.Signal, most time.Duration) (bool, error) {
	if s.PID <= 1 || !host.IsContainerID(s.ID) {
		return false, refuse("shim %q, process %d", s.ID, s.PID)
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", s.PID, err)
	}
	defer unix.Close(fd)
	if err := d.unknownToRuntime(ctx, s.ID); err != nil {
		return false, fmt.Errorf("shim %d: %w", s.PID, err)
	}
	if err := d.verifyShim(s); errors.Is(err, errGone) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("signal %d to shim %d: %w", signal, s.PID, err)
	}
	return d.AwaitEnd(ctx, Process{PID: s.PID, StartTime: s.StartTime}, most)
}

// verifyShim makes sure that a process is the evaluated shim, belongs to our containerd, and has no child processes.
func (d *Mutator) verifyShim(s Shim) error {
	stat, err := d.host.ProcStat(s.PID)
	switch {
	case proc.Gone(err):
		return errGone
	case err != nil:
		return err
	case stat.StartTime != s.StartTime:
		return changed("process %d started at %d instead of %d", s.PID, stat.StartTime, s.StartTime)
	case !proc.Alive(stat):
		return errGone
	}
	args, err := d.host.ProcArgs(s.PID)
	if proc.Gone(err) {
		return errGone
	}
	if err != nil {
		return err
	}
	shim := hostcri.ParseShim(args)
	switch {
	case shim.ID != s.ID || shim.Address == "":
		return changed("process %d is not the shim of %s", s.PID, s.ID)
	case !sameSocket(shim.Address, d.host.Paths.ContainerdSocket):
		return refuse("shim %d is of another containerd, %q", s.PID, shim.Address)
	}
	child, err := d.childOf(s.PID)
	if err == nil && child != 0 {
		err = fmt.Errorf("process %d is below shim %d: %w", child, s.PID, ErrBusy)
	}
	return err
}

// childOf returns a living child of a process, or 0. A shim is the subreaper of its container's processes: it inherits
// the children of its children when these end.
func (d *Mutator) childOf(pid int) (int, error) {
	pids, err := d.host.PIDs()
	if err != nil {
		return 0, err
	}
	for _, p := range pids {
		stat, err := d.host.ProcStat(p)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("whether a process is below process %d: %w", pid, err)
		}
		if stat.PPID == pid && proc.Alive(stat) {
			return p, nil
		}
	}
	return 0, nil
}

// unknownToRuntime makes sure that the runtime has no object under an ID: CRI no container or sandbox, containerd no
// record.
func (d *Mutator) unknownToRuntime(ctx context.Context, id string) error {
	socket := d.host.Paths.ContainerdSocket
	if socket == "" || d.runtime == nil {
		return refuse("%s: no containerd is configured", id)
	}
	c, err := hostcri.ConnectContainerd(socket)
	if err != nil {
		return fmt.Errorf("containerd %s: %w", socket, err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, hostcri.Namespace), leaseLimit)
	defer cancel()
	if err := d.unknownToCRI(ctx, id); err != nil {
		return err
	}
	return d.sandboxGone(ctx, c, id)
}

// sameSocket compares the paths of sockets after resolving links in their directories, such as /var/run.
func sameSocket(a, b string) bool {
	resolve := func(socket string) string {
		dir, err := filepath.EvalSymlinks(path.Dir(path.Clean("/" + socket)))
		if err != nil {
			return socket
		}
		return path.Join(dir, path.Base(socket))
	}
	return a != "" && b != "" && resolve(a) == resolve(b)
}
