package mutatetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// Main runs the tests of a package in SharedRoot, with ownedtest.Temp, and returns the exit status. For TestMain.
func Main(m *testing.M) int {
	status, inside := SharedRoot()
	if inside {
		defer ownedtest.Temp()()
		status = m.Run()
	}
	return status
}

// sharedRootMark is the environment variable with the role of a test program: see SharedRoot.
const sharedRootMark = "NODEAGENT_TEST_SHARED_ROOT"

// SharedRoot runs the test program again in its own mount namespace with a shared root, as systemd sets it up on every
// node, and in its own PID and network namespaces: a test has the same effects as on a node, but none on the machine.
// It returns the exit status of that program and false, or true in the program itself. For TestMain; without root it
// does nothing.
func SharedRoot() (status int, inside bool) {
	if os.Geteuid() != 0 {
		return 0, true
	}
	var err error
	switch os.Getenv(sharedRootMark) {
	case "inside":
		return 0, true
	case "init":
		if err = shareRoot(); err == nil {
			status, err = reap()
		}
	default:
		program := again("init")
		program.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID
		if err = program.Run(); program.ProcessState != nil {
			return program.ProcessState.ExitCode(), false
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, false
	}
	return status, false
}

// again is the test program with another role. It is killed when this process ends.
func again(mark string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), sharedRootMark+"="+mark)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// reap runs the test program and adopts orphaned processes like a node's init: a runtime's shims and the processes that
// a crash leaves behind.
func reap() (status int, err error) {
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	program := again("inside")
	if err := program.Start(); err != nil {
		return 0, err
	}
	for {
		var state unix.WaitStatus
		pid, err := unix.Wait4(-1, &state, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the tests: %w", err)
		case pid == program.Process.Pid && state.Exited():
			return state.ExitStatus(), nil
		case pid == program.Process.Pid:
			return 1, fmt.Errorf("the tests were ended: %s", state.Signal())
		}
	}
}

// shareRoot detaches all mounts from the machine's peer groups before it makes them shared.
func shareRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the root mount private: %w", err)
	}
	if err := detachOthers(); err != nil {
		return err
	}
	if err := ownShims(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the root mount: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	return nil
}

// ownShims hides the machine's folder of sockets of shims: containerd has them there, whatever its state folder, and a
// killed shim leaves its socket behind.
func ownShims() error {
	const shims = "/run/containerd"
	if err := os.MkdirAll(shims, 0o711); err != nil { //nolint:gosec // the mode that containerd gives it
		return err
	}
	if err := unix.Mount("tmpfs", shims, "tmpfs", 0, "mode=711"); err != nil {
		return fmt.Errorf("mount %s: %w", shims, err)
	}
	return nil
}

// detachOthers detaches the mounts of the machine that no test needs. A copy of a mount keeps its filesystem in use,
// which a neighbor (a lab, another test) may want to check or remove; and it disappears if the neighbor removes its
// mount point. All mounts must be private.
func detachOthers() error {
	directory, err := os.Getwd()
	if err != nil {
		return err
	}
	needed := append(filepath.SplitList(os.Getenv("PATH")), directory, os.TempDir(), "/usr/lib/cni", "/opt/cni/bin",
		"/etc", "/run", "/var/lib")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		point := strings.Fields(line)[4]
		if slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(of string) bool { return mount.Below(point, of) }) ||
			slices.ContainsFunc(needed, func(name string) bool { return mount.Below(name, point) }) {
			continue
		}
		err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // gone, or hidden
			return fmt.Errorf("detach %s: %w", point, err)
		}
	}
	return nil
}
