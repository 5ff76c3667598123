package handtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sharedRootMark tells a test program that it is already in namespaces of its own.
const sharedRootMark = "NODEAGENT_TEST_SHARED_ROOT"

// SharedRoot runs the test program once more in a mount namespace whose root is shared, as systemd makes it on every node, and
// in a network namespace of its own: what a test mounts, unmounts and connects then has the effects that it has on a node, and
// none on the machine. It returns the exit status of that program and false, or true in the program itself, which goes on. For
// TestMain; without root there is nothing to do.
func SharedRoot() (status int, inside bool) {
	if os.Geteuid() != 0 {
		return 0, true
	}
	if os.Getenv(sharedRootMark) != "" {
		if err := shareRoot(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, false
		}
		return 0, true
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), sharedRootMark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, false
	}
	return cmd.ProcessState.ExitCode(), false
}

// shareRoot cuts all ties with the machine's own mounts before it makes peers of those here.
func shareRoot() error {
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("share the root mount: %w", err)
		}
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
