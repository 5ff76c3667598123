package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// ProcStat is what /proc/PID/stat says, as far as it is needed. See proc_pid_stat(5).
type ProcStat struct {
	PID, PPID int
	Comm      string // up to 15 bytes of anything: blanks, parentheses, newlines
	State     byte   // R S D T t Z X I (and older W K P)
	Threads   int    // field 20, of the whole process
	StartTime uint64 // field 22, clock ticks since boot; with PID the identity of a process
	Flags     uint64 // field 9, PF_*
	CPUTicks  uint64 // fields 14 and 15, time on a processor in ticks of 10 ms: of all threads in /proc/PID/stat
}

// ParseProcStat parses the content of /proc/PID/stat:
//
//	1 (systemd) S 0 1 1 0 -1 4194560 … 22nd field: start time …
func ParseProcStat(data []byte) (ProcStat, error) {
	stat, comm, err := parseProcStat(data)
	if err != nil {
		return ProcStat{}, fmt.Errorf("process state %q: %w", hosterr.Clip(string(data)), err)
	}
	stat.Comm = string(comm)
	return stat, nil
}

// parseProcStat allocates nothing: tables of processes are made of thousands of these. The name is a part of data.
func parseProcStat(data []byte) (stat ProcStat, comm []byte, err error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return ProcStat{}, nil, errors.New("no name in parentheses")
	}
	pid, err := strconv.ParseUint(string(bytes.TrimSpace(data[:open])), 10, 31)
	if err != nil {
		return ProcStat{}, nil, errors.New("bad process ID")
	}
	stat.PID = int(pid)
	rest := data[end+1:]
	for number := 3; number <= 22; number++ {
		var field []byte
		if field, rest = nextField(rest); len(field) == 0 {
			return ProcStat{}, nil, errors.New("too few fields")
		}
		if !stat.set(number, field) {
			return ProcStat{}, nil, fmt.Errorf("bad field %d", number)
		}
	}
	return stat, data[open+1 : end], nil
}

// nextField cuts off what is before the next blank.
func nextField(data []byte) (field, rest []byte) {
	for len(data) > 0 && data[0] <= ' ' {
		data = data[1:]
	}
	for i, c := range data {
		if c <= ' ' {
			return data[:i], data[i:]
		}
	}
	return data, nil
}

// set takes one field, numbered as in proc_pid_stat(5), and reports whether it is well formed.
func (s *ProcStat) set(number int, field []byte) bool {
	if number == 3 {
		s.State = field[0]
		return len(field) == 1
	}
	var bits int
	switch number {
	case 4, 20:
		bits = 31
	case 14, 15:
		bits = 63
	case 9, 22:
		bits = 64
	default:
		return true
	}
	value, err := strconv.ParseUint(string(field), 10, bits)
	switch number {
	case 4:
		s.PPID = int(value)
	case 9:
		s.Flags = value
	case 14, 15:
		s.CPUTicks += value
	case 20:
		s.Threads = int(value)
	case 22:
		s.StartTime = value
	}
	return err == nil
}

// PIDs lists all processes (thread group leaders), ascending.
func (h *Host) PIDs() ([]int, error) { return h.numbers("/proc") }

// TIDs lists the threads of a process, ascending.
func (h *Host) TIDs(pid int) ([]int, error) { return h.numbers(ProcFile(pid, "task")) }

// numbers lists the entries of a directory whose names are numbers, ascending.
func (h *Host) numbers(dir string) ([]int, error) {
	scan := &ProcessScan{Files: h.Files}
	if err := scan.open(dir); err != nil {
		return nil, err
	}
	defer unix.Close(scan.fd)
	return scan.ids()
}

// ProcStat reads /proc/PID/stat. Where the process is gone, the error is one for Gone.
func (h *Host) ProcStat(pid int) (ProcStat, error) { return h.stat(ProcFile(pid, "stat")) }

// TaskStat reads /proc/PID/task/TID/stat: the state of one thread, whose ID is in PID of the answer.
func (h *Host) TaskStat(pid, tid int) (ProcStat, error) {
	return h.stat(ProcFile(pid, "task/"+strconv.Itoa(tid)+"/stat"))
}

func (h *Host) stat(name string) (ProcStat, error) {
	data, err := h.Files.Read(name)
	if err != nil {
		return ProcStat{}, err
	}
	return ParseProcStat(data)
}

// ProcCgroups reads /proc/PID/cgroup: from the controller ("" for cgroup v2, "cpu", "name=systemd") to the path in its
// hierarchy. The path of a cgroup that was removed ends in " (deleted)", and a zombie is in the root of v1.
func (h *Host) ProcCgroups(pid int) (map[string]string, error) {
	return h.cgroups(ProcFile(pid, "cgroup"))
}

// OwnCgroups is ProcCgroups of this process.
func (h *Host) OwnCgroups() (map[string]string, error) { return h.cgroups("/proc/self/cgroup") }

func (h *Host) cgroups(name string) (map[string]string, error) {
	paths, err := cgroups.ParseCgroupFile(h.Files.Path(name))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return paths, nil
}

// maxArgs bounds the command line of one process.
const maxArgs = 1 << 20

// ProcArgs reads the arguments of a process; none for kernel threads and zombies. Reading them takes the process's mmap
// lock and so may block for as long as another task holds it: only for where it is needed, and never for all processes.
func (h *Host) ProcArgs(pid int) ([]string, error) {
	name := ProcFile(pid, "cmdline")
	file, err := os.Open(h.Files.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := readAll(file, name, maxArgs)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

// ProcFile is a file of a process below /proc.
func ProcFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// Alive reports whether a process has not ended: a zombie has.
func Alive(stat ProcStat) bool { return stat.State != 'Z' && stat.State != 'X' && stat.State != 'x' }

// Gone reports whether an error says that a process, a thread or a file does not exist, or has ended meanwhile.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// UnlessGone forgets such an error.
func UnlessGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}
