// Package hostns lets the agent leave the container that it was started in: it enters the host's namespaces and
// executes itself again, so that from then on an agent of a DaemonSet and an agent of a package have one code path. The
// host is not mounted into the container: a mount of the host's root would hold the volumes of other pods, and paths
// below it lead elsewhere as soon as a symbolic link is on them.
//
// It refuses to enter where it does not see the host's processes: they would seem not to exist.
package hostns

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are what the agent enters. The PID namespace is the host's already (hostPID), and so is the user
// namespace: Kubernetes allows no pod with hostPID one of its own.
var namespaces = [...]struct {
	file string
	flag int
}{
	{"cgroup", unix.CLONE_NEWCGROUP},
	{"ipc", unix.CLONE_NEWIPC},
	{"uts", unix.CLONE_NEWUTS},
	{"net", unix.CLONE_NEWNET},
	{"mnt", unix.CLONE_NEWNS}, // last: it also replaces root and working directory
}

// Entry configures how to enter the host's namespaces.
type Entry struct {
	InitPID int      // the process whose namespaces stand for the host's; 1 unless set
	Keep    []string // directories of the container that are needed after it is left; empty ones stay empty
	// Args returns the command line of the second start, without the program's name. kept are the paths under which
	// it finds the directories of Keep: they lead through a descriptor, so what is replaced in them (rotated tokens)
	// is read.
	Args func(kept []string) []string
}

// Enter enters the host's namespaces and executes this program again. It returns only when it has failed; the calling
// thread is then lost and the process should end.
func (e Entry) Enter() error {
	if e.InitPID <= 0 {
		e.InitPID = 1
	}
	if err := SeesHost(e.InitPID); err != nil {
		return fmt.Errorf("enter the host's namespaces: %w", err)
	}
	// The program is executed through its descriptor: on the host its path is another file, or none.
	program, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the agent's own program: %w", err)
	}
	kept, err := keep(e.Keep)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := enter(e.InitPID); err != nil {
		return err
	}
	if err := checkProc(); err != nil { // now through the host's /proc
		return fmt.Errorf("on the host: %w", err)
	}
	argv := append([]string{"nodeagent"}, e.Args(kept)...)
	err = syscall.Exec(descriptor(program), argv, os.Environ())
	return fmt.Errorf("execute the agent again on the host: %w", err)
}

// enter moves the calling thread, which must be locked, into the namespaces of a process.
func enter(pid int) error {
	var opened [len(namespaces)]int
	for i, ns := range namespaces {
		path := fmt.Sprintf("/proc/%d/ns/%s", pid, ns.file)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w; the container must be privileged", path, err)
		}
		opened[i] = fd
	}
	// The kernel lets no thread change its mount namespace while it shares root and working directory with other
	// threads.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare root and working directory: %w", err)
	}
	for i, ns := range namespaces {
		if err := unix.Setns(opened[i], ns.flag); err != nil {
			return fmt.Errorf("enter the %s namespace of process %d: %w; the container must be privileged", ns.file,
				pid, err)
		}
	}
	return nil
}

// keep opens directories so that they stay open through the second start, and returns their paths then.
func keep(dirs []string) ([]string, error) {
	var kept []string
	for _, dir := range dirs {
		if dir == "" {
			kept = append(kept, "")
			continue
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, fmt.Errorf("keep %s: %w", dir, err)
		}
		kept = append(kept, descriptor(fd))
	}
	return kept, nil
}

const descriptors = "/proc/self/fd"

func descriptor(fd int) string { return filepath.Join(descriptors, strconv.Itoa(fd)) }
