package mutate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// journalctl is the only documented interface to journald's own vacuum: none of journald's varlink methods vacuums.
// https://www.freedesktop.org/software/systemd/man/latest/journalctl.html#--vacuum-size=
const journalctl = "/usr/bin/journalctl"

// vacuumLimit bounds a vacuum, which unlinks files of up to 128 MiB each.
const vacuumLimit = time.Minute

// MayVacuumJournal returns why journalctl cannot be run.
func (d *Mutator) MayVacuumJournal() error { return runsJournalctl() }

func runsJournalctl() error {
	if err := owned.Program(journalctl); err != nil {
		return refuse("%s is not run: %v", journalctl, err)
	}
	return nil
}

// VacuumJournal has journalctl remove the oldest archived files of the journal in one folder until those that are left
// take at most keep bytes: together with the files that journald writes to, since systemd 252 or so, and without these
// before. These stay in either case.
func (d *Mutator) VacuumJournal(ctx context.Context, folder Folder, keep uint64) error {
	if keep == 0 || folder.File == (FileID{}) {
		return refuse("no floor, or a folder that was not listed") // for journalctl 0 means no limit
	}
	_, err := d.doIn(ctx, &d.vacuum, request{Op: opVacuum, Base: path.Dir(folder.Path), Path: path.Base(folder.Path),
		File: folder.File, Limit: keep})
	return err
}

// vacuumChild passes the folder as an open descriptor, because its name may refer to another folder by then.
func vacuumChild(r request) error {
	if err := runsJournalctl(); err != nil {
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
