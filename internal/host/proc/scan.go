package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Scan reads tables of processes, or of the threads of one.
type Scan struct {
	Root   string // root of the host's files; empty for /
	Before []Stat // names are reused from here, which avoids copies
	Buffer []byte // reused by the next scan
	dir    string
	fd     int // of dir
}

// Run reads the states of all processes in /proc, or of the threads in /proc/PID/task, ascending by ID.
func (s *Scan) Run(ctx context.Context, dir string) ([]Stat, error) {
	if err := s.open(dir); err != nil {
		return nil, err
	}
	defer unix.Close(s.fd)
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	table := make([]Stat, 0, len(ids))
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
		stat, err := s.read(id)
		if Gone(err) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read %s/%d/stat: %w", dir, id, err)
		}
		table = append(table, stat)
	}
	return table, nil
}

// open opens the directory to be scanned.
func (s *Scan) open(dir string) (err error) {
	s.dir = dir
	s.fd, err = unix.Open(filepath.Join("/", s.Root, dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	if s.Buffer == nil {
		s.Buffer = make([]byte, 16<<10)
	}
	return nil
}

// IDs lists the entries of a directory whose names are numbers, ascending.
func (s *Scan) IDs(dir string) ([]int, error) {
	if err := s.open(dir); err != nil {
		return nil, err
	}
	defer unix.Close(s.fd)
	return s.ids()
}

// maxPIDs is PID_MAX_LIMIT of the kernel: no pod can make more processes than can be listed.
const maxPIDs = 1 << 22

// ids lists the numbers in the directory, ascending.
func (s *Scan) ids() ([]int, error) {
	ids := make([]int, 0, len(s.Before)+64)
	for {
		n, err := unix.ReadDirent(s.fd, s.Buffer)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, &os.PathError{Op: "list", Path: s.dir, Err: err}
		case n == 0:
			slices.Sort(ids)
			return ids, nil
		case len(ids) > maxPIDs:
			return nil, fmt.Errorf("list %s: more than %d entries", s.dir, maxPIDs)
		}
		ids = appendNumbers(ids, s.Buffer[:n])
	}
}

// direntHeader is the length of struct linux_dirent64 before the name: d_ino, d_off, d_reclen, d_type.
const direntHeader = 8 + 8 + 2 + 1

// appendNumbers adds the entries with numeric names in the data that getdents64 returned.
func appendNumbers(numbers []int, data []byte) []int {
	for len(data) > direntHeader {
		length := int(binary.NativeEndian.Uint16(data[16:]))
		if length <= direntHeader || length > len(data) {
			return numbers // impossible; the kernel writes complete records
		}
		number, digits := 0, 0
		for _, c := range data[direntHeader:length] {
			if c < '0' || c > '9' || digits > 9 {
				if c != 0 {
					number = 0
				}
				break
			}
			number, digits = number*10+int(c-'0'), digits+1
		}
		if number > 0 {
			numbers = append(numbers, number)
		}
		data = data[length:]
	}
	return numbers
}

// read reads one process or thread.
func (s *Scan) read(pid int) (Stat, error) {
	fd, err := unix.Openat(s.fd, strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, s.Buffer)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, s.Buffer)
	}
	if err != nil {
		return Stat{}, err
	}
	stat, comm, err := parseStat(s.Buffer[:n])
	if err != nil {
		return Stat{}, fmt.Errorf("process state %q: %w", hosterr.Clip(string(s.Buffer[:n])), err)
	}
	stat.Comm = s.name(pid, comm)
	return stat, nil
}

// name returns the name as a new string, or the one in the table before. Both are used in ascending order, so earlier
// entries are no longer needed.
func (s *Scan) name(pid int, comm []byte) string {
	for len(s.Before) > 0 && s.Before[0].PID < pid {
		s.Before = s.Before[1:]
	}
	if len(s.Before) > 0 && s.Before[0].PID == pid && s.Before[0].Comm == string(comm) {
		return s.Before[0].Comm
	}
	return string(comm)
}
