package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process identifies one process for ever: a PID alone may be reused.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// stat has the fields of /proc/PID/stat that the lab needs.
type stat struct {
	State   byte
	Parent  int
	Session int
	Threads int
	Start   uint64
}

// dead reports whether the whole process has ended, and so closed its ports: the main thread may be a zombie before the
// others have.
func (s stat) dead() bool { return s.State == 'X' || s.State == 'Z' && s.Threads <= 1 }

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(data))
}

// parseStat parses the fields after the command's name, which may itself contain blanks and brackets.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	if end < 0 || len(fields) < 20 {
		return stat{}, fmt.Errorf("stat line %q: too few fields", line)
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	threads, err3 := strconv.Atoi(fields[17])
	start, err4 := strconv.ParseUint(fields[19], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return stat{}, fmt.Errorf("stat line %q: %w", line, err)
	}
	return stat{State: fields[0][0], Parent: parent, Session: session, Threads: threads, Start: start}, nil
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}

func identify(pid int) (process, error) {
	s, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: s.Start, Boot: bootID()}, nil
}

// status is the process's state, and false if it has ended.
func (p process) status() (stat, bool) {
	if p.Boot != bootID() {
		return stat{}, false
	}
	s, err := readStat(p.PID)
	return s, err == nil && s.Start == p.Start && !s.dead()
}

// signal sends sig to exactly this process; it is no error if it has ended.
func (p process) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if _, alive := p.status(); !alive { // checked after the descriptor pins the process
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %v to %d: %w", sig, p.PID, err)
	}
	return nil
}

func pidFile(dir, component string) string { return filepath.Join(dir, "pids", component+".json") }

func readPIDFile(path string) (process, error) {
	var p process
	data, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// launch starts argv as a process in a new session that outlives this process, with its output in the log file. A
// goroutine waits for its end.
func launch(dir, name, logFile string, argv []string) error {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=" + searchPath(argv[0]), "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	err = record(dir, name, cmd.Process.Pid)
	go cmd.Wait() // reaps it if it ends while we live; its state is read from /proc
	return err
}

// searchPath puts the folder of a program first: containerd runs the first shim that it finds, its own, not Debian's.
func searchPath(program string) string {
	return filepath.Dir(program) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// record notes the process of a component.
func record(dir, component string, pid int) error {
	p, err := identify(pid)
	if err != nil {
		return fmt.Errorf("start %s: %w", component, err)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(pidFile(dir, component), append(data, '\n'), 0o644)
}

// halt ends p: gracefully while patience lasts, then by force.
func halt(ctx context.Context, p process, patience time.Duration) error {
	gone := func(context.Context) error {
		if s, alive := p.status(); alive {
			return fmt.Errorf("process %d still exists, in state %c", p.PID, s.State)
		}
		return nil
	}
	// A stopped process sees SIGTERM only when it continues.
	if err := errors.Join(p.signal(unix.SIGTERM), p.signal(unix.SIGCONT)); err != nil {
		return err
	}
	if poll(ctx, patience, 20*time.Millisecond, gone) == nil {
		return nil
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	return poll(context.WithoutCancel(ctx), 10*time.Second, 20*time.Millisecond, gone)
}

// tail returns the last n lines of a log.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "(no log)"
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
