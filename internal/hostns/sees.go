package hostns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// firstPIDNamespace is the initial PID namespace of every machine (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const firstPIDNamespace = "pid:[4026531836]"

// SeesHost returns why this process does not see the processes of the host of process initPID, nil if it does. Without
// them a full cgroup looks empty, and objects of a living pod look abandoned.
func SeesHost(initPID int) error {
	// The first process of a PID namespace, or one that joined from outside, has a parent that it cannot see
	// (getppid(2)). This distinguishes a container without hostPID from a host even if containers share a PID
	// namespace.
	if os.Getppid() == 0 {
		return errors.New("this process has its own PID namespace: set hostPID")
	}
	if err := checkProc(); err != nil {
		return err
	}
	if initPID == os.Getpid() {
		return fmt.Errorf("process %d, which stands for the host, is this process itself", initPID)
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fmt.Errorf("own PID namespace: %w", err)
	}
	host, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", max(initPID, 1)))
	if err != nil && own == firstPIDNamespace {
		return nil // there is no namespace above it
	}
	if err != nil {
		return fmt.Errorf("the host's PID namespace: %w", err)
	}
	if own != host {
		return fmt.Errorf("this process is in PID namespace %s, process %d in %s: set hostPID", own, max(initPID, 1),
			host)
	}
	return nil
}

// checkProc returns an error if /proc belongs to another PID namespace than this process.
func checkProc() error {
	shown, err := os.Readlink("/proc/self")
	if err != nil {
		return fmt.Errorf("/proc does not show this process: %w; set hostPID", err)
	}
	if pid := os.Getpid(); shown != strconv.Itoa(pid) {
		return fmt.Errorf("process %d is %s in /proc, which is of another PID namespace: set hostPID", pid, shown)
	}
	return nil
}
