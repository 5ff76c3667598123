package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// journalctl is the only documented interface to journald's own vacuum: none of journald's varlink methods vacuums.
// https://www.freedesktop.org/software/systemd/man/latest/journalctl.html#--vacuum-size=
const journalctl = "/usr/bin/journalctl"

// RunsJournalctl returns why journalctl cannot be run.
func RunsJournalctl() error {
	if err := owned.Program(journalctl); err != nil {
		return Refuse("%s is not run: %v", journalctl, err)
	}
	return nil
}

// vacuum passes the folder as an open descriptor, because its name may refer to another folder by then.
func vacuum(r Request) error {
	if err := RunsJournalctl(); err != nil {
		return err
	}
	fd, _, err := openFolder(r)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), r.Path)
	defer dir.Close()
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	cmd := exec.Cmd{
		Path: journalctl, Dir: "/", Env: []string{"LC_ALL=C"}, ExtraFiles: []*os.File{dir},
		Args: []string{journalctl, "--quiet", "--directory=/proc/self/fd/3",
			"--vacuum-size=" + strconv.FormatUint(r.Limit, 10)},
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		const most = 1000
		return fmt.Errorf("journalctl --vacuum-size: %w: %s", err, out[:min(len(out), most)])
	}
	return nil
}
