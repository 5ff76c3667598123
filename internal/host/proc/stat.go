// Package proc parses and lists the files of processes and threads in /proc. The methods of Host in internal/host
// decide which are read, and how old a result may be.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Stat contains the fields of /proc/PID/stat in use. See proc_pid_stat(5).
type Stat struct {
	PID, PPID int
	Comm      string // up to 15 bytes of anything: blanks, parentheses, newlines
	State     byte   // R S D T t Z X I (and older W K P)
	Threads   int    // field 20, of the whole process
	StartTime uint64 // field 22, clock ticks since boot; with PID the identity of a process
	Flags     uint64 // field 9, PF_*
	CPUTicks  uint64 // fields 14 and 15, time on a processor in ticks of 10 ms: of all threads in /proc/PID/stat
}

// Read reads a file with the state of a process or thread. If it is gone, Gone is true for the error.
func Read(tree files.Tree, name string) (Stat, error) {
	data, err := tree.Read(name)
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(data)
}

// ParseStat parses the content of /proc/PID/stat:
//
//	1 (systemd) S 0 1 1 0 -1 4194560 … 22nd field: start time …
func ParseStat(data []byte) (Stat, error) {
	stat, comm, err := parseStat(data)
	if err != nil {
		return Stat{}, fmt.Errorf("process state %q: %w", hosterr.Clip(string(data)), err)
	}
	stat.Comm = string(comm)
	return stat, nil
}

// parseStat allocates no memory: a process table needs thousands of calls. comm is a part of data.
func parseStat(data []byte) (stat Stat, comm []byte, err error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Stat{}, nil, errors.New("no name in parentheses")
	}
	pid, err := strconv.ParseUint(string(bytes.TrimSpace(data[:open])), 10, 31)
	if err != nil {
		return Stat{}, nil, errors.New("bad process ID")
	}
	stat.PID = int(pid)
	rest := data[end+1:]
	for number := 3; number <= 22; number++ {
		var field []byte
		if field, rest = nextField(rest); len(field) == 0 {
			return Stat{}, nil, errors.New("too few fields")
		}
		if !stat.set(number, field) {
			return Stat{}, nil, fmt.Errorf("bad field %d", number)
		}
	}
	return stat, data[open+1 : end], nil
}

// nextField cuts off the field before the next blank.
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

// set stores one field, numbered as in proc_pid_stat(5), and reports whether it is well formed.
func (s *Stat) set(number int, field []byte) bool {
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

// File returns the path of a process's file in /proc.
func File(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// Alive reports whether a process has not ended. A zombie has ended, unless it is only the main thread of a process
// whose other threads run on.
func Alive(stat Stat) bool {
	return stat.State != 'X' && stat.State != 'x' && (stat.State != 'Z' || stat.Threads > 1)
}

// Gone reports whether an error means that a process, a thread or a file does not exist, or has ended meanwhile.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// UnlessGone returns nil for such an error, and err otherwise.
func UnlessGone(err error) error {
	if Gone(err) {
		return nil
	}
	return err
}
