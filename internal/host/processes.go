package host

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"

	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// PIDs lists all processes (thread group leaders), ascending.
func (h *Host) PIDs() ([]int, error) { return h.numbers("/proc") }

// TIDs lists the threads of a process, ascending.
func (h *Host) TIDs(pid int) ([]int, error) { return h.numbers(proc.File(pid, "task")) }

// numbers lists the entries of a directory whose names are numbers, ascending.
func (h *Host) numbers(dir string) ([]int, error) {
	return (&proc.Scan{Root: h.Files.Root}).IDs(dir)
}

// ProcStat reads /proc/PID/stat. If the process is gone, proc.Gone is true for the error.
func (h *Host) ProcStat(pid int) (proc.Stat, error) {
	return proc.Read(h.Files, proc.File(pid, "stat"))
}

// TaskStat reads /proc/PID/task/TID/stat: the state of one thread. The result has its ID in PID.
func (h *Host) TaskStat(pid, tid int) (proc.Stat, error) {
	return proc.Read(h.Files, proc.File(pid, "task/"+strconv.Itoa(tid)+"/stat"))
}

// ProcCgroups reads /proc/PID/cgroup: from the controller ("" for cgroup v2, "cpu", "name=systemd") to the path in its
// hierarchy. The path of a removed cgroup ends in " (deleted)". In v1 an exiting thread is in the root: if the main thread
// is, the cgroups are those of another one that is not; if there is none, the root.
func (h *Host) ProcCgroups(pid int) (map[string]string, error) {
	paths, err := h.cgroups(proc.File(pid, "cgroup"))
	if err != nil || !inRootOfV1(paths) {
		return paths, err
	}
	stat, err := h.ProcStat(pid)
	if proc.Gone(err) || err == nil && (!proc.Exiting(stat) || stat.Threads <= 1) {
		return paths, nil
	}
	if err != nil {
		return nil, fmt.Errorf("whether process %d is exiting: %w", pid, err)
	}
	err = proc.Shown(h.Files, pid, func(id int) error {
		of, err := h.cgroups(proc.File(id, "cgroup"))
		if err != nil {
			return err
		}
		if inRootOfV1(of) {
			thread, err := h.TaskStat(pid, id)
			if err != nil {
				return err
			}
			if proc.Exiting(thread) {
				return fs.ErrNotExist
			}
		}
		paths = of
		return nil
	})
	if err != nil && !proc.Left(err) {
		return nil, err
	}
	return paths, nil
}

// inRootOfV1 reports whether a thread is in the root of all hierarchies of cgroup v1, and there is one: as kernel threads
// are, and as the kernel shows an exiting one (proc_cgroup_show in kernel/cgroup/cgroup.c).
func inRootOfV1(paths map[string]string) bool {
	v1 := false
	for controller, name := range paths {
		if controller == "" {
			continue
		}
		if v1 = true; name != "/" {
			return false
		}
	}
	return v1
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

func readAll(file io.Reader, name string, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, limit)
	}
	return data, nil
}

// maxArgs bounds the command line of one process.
const maxArgs = 1 << 20

// ProcArgs reads the arguments of a process; none for kernel threads and zombies. If its main thread has ended, another
// one shows them. Reading them takes the process's mmap
// lock and so may block for as long as another task holds it: use it only if needed, and never for all processes.
func (h *Host) ProcArgs(pid int) ([]string, error) {
	data, err := h.cmdline(pid)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		stat, err := h.ProcStat(pid)
		if err != nil || !proc.Exiting(stat) || stat.Threads <= 1 {
			return nil, proc.UnlessGone(err)
		}
		if err := proc.Shown(h.Files, pid, func(id int) (err error) {
			if data, err = h.cmdline(id); err == nil && len(data) == 0 {
				err = fs.ErrNotExist // it has left the memory of its process
			}
			return err
		}); err != nil {
			return nil, proc.UnlessGone(err)
		}
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

func (h *Host) cmdline(pid int) ([]byte, error) {
	name := proc.File(pid, "cmdline")
	file, err := os.Open(h.Files.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, name, maxArgs)
}

// Processes is the last scan of /proc, shared by all callers in the same minute: a scan costs 2 ms for 1000 processes,
// most of it in the kernel.
type Processes struct {
	turn chan struct{} // holds one token, which guards the fields below

	buffer []byte
	table  []proc.Stat
	at     time.Duration // uptime of the begin of the scan

	RuntimeTurn chan struct{} // holds one token, which guards Runtime
	Runtime     Process       // the last one found by Daemons
}

// NewProcesses returns an empty cache.
func NewProcesses() *Processes {
	return &Processes{turn: make(chan struct{}, 1), RuntimeTurn: make(chan struct{}, 1)}
}

// ProcessTable lists all processes (thread group leaders, including kernel threads and zombies), ascending, as of at
// most maxAge ago. State is that of the main thread only. The table is shared: it must not be changed. Processes that
// start or end during the scan may be missing.
func (h *Host) ProcessTable(ctx context.Context, maxAge time.Duration) ([]proc.Stat, error) {
	p := h.Processes
	if p == nil {
		return (&proc.Scan{Root: h.Files.Root}).Run(ctx, "/proc")
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
	scan := &proc.Scan{Root: h.Files.Root, Before: p.table, Buffer: p.buffer}
	table, err := scan.Run(ctx, "/proc")
	if err != nil {
		return nil, err
	}
	p.table, p.at, p.buffer = table, now, scan.Buffer
	return table, nil
}

// Threads returns all threads of some processes, with the thread's ID in PID. Processes that have ended are left out.
func (h *Host) Threads(ctx context.Context, pids []int, each func(pid int, thread proc.Stat)) error {
	threads := h.ThreadLister()
	for _, pid := range pids {
		found, err := threads(ctx, pid)
		if err != nil && !proc.Gone(err) {
			return err
		}
		for _, thread := range found {
			each(pid, thread)
		}
	}
	return nil
}

// ThreadLister returns a function that lists the threads of a process, as Threads does. Its calls share a buffer.
func (h *Host) ThreadLister() func(ctx context.Context, pid int) ([]proc.Stat, error) {
	scan := &proc.Scan{Root: h.Files.Root}
	return func(ctx context.Context, pid int) ([]proc.Stat, error) { return scan.Run(ctx, proc.File(pid, "task")) }
}
