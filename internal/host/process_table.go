package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Processes is the last scan of /proc, for all who ask in the same minute: a scan costs 2 ms for 1000 processes, most
// of it in the kernel.
type Processes struct {
	turn chan struct{} // holds one token: who has it may use what is below

	buffer []byte
	table  []ProcStat
	at     time.Duration // uptime of the begin of the scan

	RuntimeTurn chan struct{} // holds one token: who has it may use runtime
	Runtime     Process       // the last that Daemons found
}

// NewProcesses returns a cache that has seen nothing.
func NewProcesses() *Processes {
	return &Processes{turn: make(chan struct{}, 1), RuntimeTurn: make(chan struct{}, 1)}
}

// ProcessTable lists all processes (thread group leaders, kernel threads and zombies too), ascending, as they were
// maxAge ago at most. State is that of the main thread alone. The table is shared: it must not be changed. Processes
// that come or go during the scan may be missing.
func (h *Host) ProcessTable(ctx context.Context, maxAge time.Duration) ([]ProcStat, error) {
	p := h.Processes
	if p == nil {
		return (&ProcessScan{Files: h.Files}).Run(ctx, "/proc")
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("list processes: %w", ctx.Err())
	}
	now := h.Clock().SinceBoot
	if p.table != nil && now-p.at <= maxAge {
		return p.table, nil
	}
	scan := &ProcessScan{Files: h.Files, before: p.table, buffer: p.buffer}
	table, err := scan.Run(ctx, "/proc")
	if err != nil {
		return nil, err
	}
	p.table, p.at, p.buffer = table, now, scan.buffer
	return table, nil
}

// Threads returns all threads of some processes, with the thread's ID in PID. Processes that have ended are left out.
func (h *Host) Threads(ctx context.Context, pids []int, each func(pid int, thread ProcStat)) error {
	scan := &ProcessScan{Files: h.Files}
	for _, pid := range pids {
		threads, err := scan.Run(ctx, ProcFile(pid, "task"))
		if Gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, thread := range threads {
			each(pid, thread)
		}
	}
	return nil
}

// ProcessScan makes tables, of processes or of the threads of one.
type ProcessScan struct {
	Files  Files
	before []ProcStat // names are taken from here, which spares their copies
	buffer []byte
	dir    string
	fd     int // of dir
}

func (s *ProcessScan) Run(ctx context.Context, dir string) ([]ProcStat, error) {
	if err := s.open(dir); err != nil {
		return nil, err
	}
	defer unix.Close(s.fd)
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	table := make([]ProcStat, 0, len(ids))
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
func (s *ProcessScan) open(dir string) (err error) {
	s.dir = dir
	if s.fd, err = unix.Open(s.Files.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	if s.buffer == nil {
		s.buffer = make([]byte, 16<<10)
	}
	return nil
}

// maxPIDs is PID_MAX_LIMIT of the kernel: no pod can make more processes than can be listed.
const maxPIDs = 1 << 22

// ids lists the numbers in the directory, ascending.
func (s *ProcessScan) ids() ([]int, error) {
	ids := make([]int, 0, len(s.before)+64)
	for {
		n, err := unix.ReadDirent(s.fd, s.buffer)
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
		ids = appendNumbers(ids, s.buffer[:n])
	}
}

// appendNumbers takes those entries that getdents64 put into data whose names are numbers.
func appendNumbers(numbers []int, data []byte) []int {
	for len(data) > direntHeader {
		length := int(binary.NativeEndian.Uint16(data[16:]))
		if length <= direntHeader || length > len(data) {
			return numbers // cannot be; the kernel writes whole records
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
func (s *ProcessScan) read(pid int) (ProcStat, error) {
	fd, err := unix.Openat(s.fd, strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ProcStat{}, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, s.buffer)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, s.buffer)
	}
	if err != nil {
		return ProcStat{}, err
	}
	stat, comm, err := parseProcStat(s.buffer[:n])
	if err != nil {
		return ProcStat{}, fmt.Errorf("process state %q: %w", hosterr.Clip(string(s.buffer[:n])), err)
	}
	stat.Comm = s.name(pid, comm)
	return stat, nil
}

// name returns the name as a string of its own, or the same one as in the table before. Both are asked for in ascending
// order, so that what is behind is not needed any more.
func (s *ProcessScan) name(pid int, comm []byte) string {
	for len(s.before) > 0 && s.before[0].PID < pid {
		s.before = s.before[1:]
	}
	if len(s.before) > 0 && s.before[0].PID == pid && s.before[0].Comm == string(comm) {
		return s.before[0].Comm
	}
	return string(comm)
}
