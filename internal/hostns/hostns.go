// Package hostns lets the agent leave the container that it was started in: it enters the host's namespaces and
// executes itself again, so that from then on an agent of a DaemonSet and an agent of a package share one code path.
// The host is not mounted into the container: a mount of the host's root would hold the volumes of other pods, and
// paths below it lead elsewhere if they contain a symbolic link.
//
// It refuses to enter if it does not see the host's processes: they would seem not to exist.
package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are the namespaces that the agent enters. Its PID namespace is already the host's (hostPID), and so is its
// user namespace: Kubernetes does not allow a pod with hostPID its own.
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
	InitPID int      // the process whose namespaces are the host's; default 1
	Keep    []string // directories of the container needed after leaving it; empty ones stay empty
	// Args returns the command line of the second start, without the program's name. kept are the new paths of the
	// directories of Keep: they lead through a descriptor, so that files replaced in them (rotated tokens) are read.
	Args func(kept []string) []string
}

// Enter enters the host's namespaces and executes this program again. It returns only on failure; the calling thread is
// then unusable and the process should end.
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
	// The kernel lets no thread change its mount namespace while it shares its root and working directory with other
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

// keep opens directories so that they stay open through the second start, and returns their future paths.
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

// Entered is called first after the second start: it restores the process's name (the process was executed from a
// descriptor), and makes its children close the kept descriptors, which they do not need.
func Entered(kept ...string) error {
	// An error does not matter: only the name in the process list differs.
	_ = os.WriteFile("/proc/self/comm", []byte("nodeagent"), 0)
	var errs []error
	for _, path := range kept {
		if path == "" {
			continue
		}
		dir, name := filepath.Split(path)
		fd, err := strconv.Atoi(name)
		if filepath.Clean(dir) != descriptors || err != nil {
			errs = append(errs, fmt.Errorf("%s is not a descriptor of this process", path))
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			errs = append(errs, fmt.Errorf("kept directory %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}
