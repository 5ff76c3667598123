package mutate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Process is the identity of one process of a pod.
type Process struct {
	PID       int
	StartTime uint64 // field 22 of /proc/PID/stat
	UID       string // of the pod whose cgroup it is in
	Driver    string // cgroup driver of our kubelet, as inspected: see Cgroup
}

// awaitSlice is how often AwaitEnd checks whether it was interrupted.
const awaitSlice = 50 * time.Millisecond

// Flags of /proc/PID/stat: see include/linux/sched.h.
const (
	exiting      = 0x00000004 // PF_EXITING: it is exiting, whatever signal it gets
	kernelThread = 0x00200000 // PF_KTHREAD
)

// Terminate sends SIGTERM to a process. It is no error if the process is gone, is exiting, or is dead and not yet
// reaped.
func (d *Mutator) Terminate(p Process) error { return d.signal(p, unix.SIGTERM) }

// Kill sends SIGKILL to a process.
func (d *Mutator) Kill(p Process) error { return d.signal(p, unix.SIGKILL) }

func (d *Mutator) signal(p Process, signal syscall.Signal) error {
	fd, err := d.openProcess(p)
	if err != nil {
		return hosterr.Ignore(err, errGone)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %d to process %d: %w", signal, p.PID, err)
	}
	return nil
}

// openProcess opens a process and checks that it is the inspected one. The descriptor refers to that process even if
// its PID is reused, so the checks come after opening it.
func (d *Mutator) openProcess(p Process) (int, error) {
	if p.PID <= 1 || p.PID == os.Getpid() || p.UID == "" {
		return -1, refuse("process %d of pod %q", p.PID, p.UID)
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, errGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	if err := d.verifyProcess(p); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (d *Mutator) verifyProcess(p Process) error {
	stat, err := d.host.ProcStat(p.PID)
	switch {
	case proc.Gone(err):
		return errGone
	case err != nil:
		return err
	case stat.StartTime != p.StartTime:
		return changed("process %d started at %d instead of %d", p.PID, stat.StartTime, p.StartTime)
	case stat.Flags&kernelThread != 0:
		return refuse("process %d is a kernel thread", p.PID)
	case !proc.Alive(stat):
		return errGone
	}
	cgroups, err := d.host.ProcCgroups(p.PID)
	if proc.Gone(err) {
		return errGone
	}
	if err != nil {
		return err
	}
	ours := false
	for _, name := range cgroups {
		if uid, _, ok := d.host.Paths.PodOfCgroup(name); ok && uid != p.UID {
			return changed("process %d is in a cgroup of pod %s, not only in one of pod %s", p.PID, uid, p.UID)
		}
		_, err := d.podCgroup(name, p.UID, p.Driver)
		ours = ours || err == nil
	}
	if ours {
		return nil
	}
	// cgroup v1 shows an exiting process in no cgroup: see proc_cgroup_show in kernel/cgroup/cgroup.c.
	stat, err = d.host.ProcStat(p.PID)
	if proc.Gone(err) || err == nil && (stat.StartTime != p.StartTime || stat.Flags&exiting != 0) {
		return errGone
	}
	return changed("process %d is in no cgroup of pod %s", p.PID, p.UID)
}

// Ended reports whether a process is gone, or dead and waiting to be reaped.
func (d *Mutator) Ended(p Process) (bool, error) {
	stat, err := d.host.ProcStat(p.PID)
	if proc.Gone(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return stat.StartTime != p.StartTime || !proc.Alive(stat), nil
}

// AwaitEnd waits at most for the given time until a process has ended, and reports whether it has.
func (d *Mutator) AwaitEnd(ctx context.Context, p Process, most time.Duration) (bool, error) {
	deadline := time.Now().Add(most)
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return d.Ended(p)
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	for {
		// After opening: while that process lives, the descriptor can refer to no other.
		if ended, err := d.Ended(p); ended || err != nil {
			return ended, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		wait := min(left, awaitSlice).Milliseconds() + 1
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait)); err != nil &&
			!errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
}

// Stuck describes where a process hangs: its state and the kernel function it waits in; if its main thread has ended,
// those of the first thread in state D.
func (d *Mutator) Stuck(p Process) string {
	stat, err := d.host.ProcStat(p.PID)
	if err != nil || stat.StartTime != p.StartTime {
		return "it has ended meanwhile"
	}
	if stat.State == 'Z' {
		threads, _ := d.host.TIDs(p.PID)
		for _, id := range threads {
			if thread, err := d.host.TaskStat(p.PID, id); err == nil && thread.State == 'D' {
				return fmt.Sprintf("%s (%d) is in state Z, and its thread %d in state D in %s", stat.Comm, p.PID, id,
					d.waitsIn(fmt.Sprintf("/proc/%d/task/%d/wchan", p.PID, id)))
			}
		}
	}
	return fmt.Sprintf("%s (%d) is in state %c in %s", stat.Comm, p.PID, stat.State,
		d.waitsIn(fmt.Sprintf("/proc/%d/wchan", p.PID)))
}

func (d *Mutator) waitsIn(file string) string {
	where, err := d.host.Files.Text(file)
	if err != nil || where == "0" || where == "" {
		return "an unknown function"
	}
	return where
}
