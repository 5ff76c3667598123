// Package holders finds the processes that hold a mount, a namespace or a FUSE connection. It reads only data that the
// kernel has in memory, and never the held files.
package holders

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Holdable is a directory or a mount that may be busy.
type Holdable struct {
	Path  string
	Mount *mount.Mount // nil for a plain directory
}

// Holding is one way in which one process keeps a Holdable busy.
type Holding struct {
	PID  int
	Comm string
	How  string // open-file, cwd, root, mapped, mount-namespace
	UID  string // of the process's pod; empty if it is in none
}

// Bounds of one search.
const (
	maxHolderProcesses = 1 << 14
	maxHolderFiles     = 1 << 18
	maxHoldings        = 16 // of one Holdable; the first ones are enough for a report
)

// Holders finds the holders of each Holdable: processes in this mount namespace with an open file, working directory,
// root, program or mapping there, and other mount namespaces with the same part of the same filesystem. It reads only
// links in /proc, which the kernel answers from memory, so that a hung filesystem cannot block it. If the search
// stopped early, incomplete is the reason.
func Holders(ctx context.Context, h *host.Host, things []Holdable) (holdings [][]Holding, incomplete string,
	err error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, "", err
	}
	own, err := h.Files.Link("/proc/self/ns/mnt")
	if err != nil {
		return nil, "", err
	}
	s := holderSearch{host: h, things: things, found: make([][]Holding, len(things)),
		namespaces: map[string]bool{own: true}}
	for i, pid := range pids {
		switch {
		case ctx.Err() != nil:
			return s.found, fmt.Sprintf("after %d of %d processes: %v", i, len(pids), ctx.Err()), nil //nolint:nilerr // incomplete reports how far it got
		case i == maxHolderProcesses || s.files > maxHolderFiles:
			return s.found, fmt.Sprintf("after %d of %d processes and %d open files", i, len(pids), s.files), nil
		}
		s.addProcess(pid, own)
	}
	if s.files > maxHolderFiles {
		return s.found, fmt.Sprintf("after %d open files", s.files), nil
	}
	return s.found, "", nil
}

// holderSearch is one pass over the processes.
type holderSearch struct {
	host       *host.Host
	things     []Holdable
	found      [][]Holding
	namespaces map[string]bool // mount namespaces already read
	files      int
	pid        int // the current process
}

// addProcess adds everything that one process holds. Unreadable links belong to a process that has just ended, or to a
// kernel thread.
func (s *holderSearch) addProcess(pid int, own string) {
	s.pid = pid
	_ = proc.Shown(s.host.Files, pid, func(id int) error {
		if s.files > maxHolderFiles {
			return nil
		}
		namespace, err := s.host.Files.Link(proc.File(id, "ns/mnt"))
		if err != nil {
			return err
		}
		if namespace == own {
			s.addFiles(id)
		} else if !s.namespaces[namespace] { // its paths have no meaning here
			s.addNamespace(id, namespace)
		}
		if thread, err := s.host.TaskStat(id, id); err != nil || proc.Exiting(thread) {
			return fs.ErrNotExist // it may have shown less than the process holds
		}
		return nil
	})
}

// addFiles adds what one thread has open, and its directories and memory.
func (s *holderSearch) addFiles(id int) {
	s.addLink(id, "cwd", "cwd")
	s.addLink(id, "root", "root")
	s.addLink(id, "exe", "mapped")
	files, err := s.host.Files.List(proc.File(id, "fd"))
	if err != nil {
		return
	}
	s.files += len(files)
	for _, fd := range files {
		s.addLink(id, "fd/"+fd, "open-file")
	}
	s.addMappings(id)
}

// addLink adds the process as a holder of the things to which a link of its thread leads.
func (s *holderSearch) addLink(id int, link, how string) {
	target, err := s.host.Files.Link(proc.File(id, link))
	if err != nil || !strings.HasPrefix(target, "/") {
		return
	}
	target = strings.TrimSuffix(target, " (deleted)")
	for i, thing := range s.things {
		if mount.Below(target, thing.Path) {
			s.add(i, how)
		}
	}
}

// addNamespace adds the process as a holder of the mounts that its namespace shares.
func (s *holderSearch) addNamespace(id int, name string) {
	mounts, err := mount.TableOf(s.host, id)
	if err != nil {
		return
	}
	s.namespaces[name] = true
	for _, m := range mounts {
		for i, thing := range s.things {
			if t := thing.Mount; t != nil && m.ID != t.ID && m.Major == t.Major && m.Minor == t.Minor &&
				m.Root == t.Root {
				s.add(i, "mount-namespace")
			}
		}
	}
}

// addMappings adds mapped files. Reading them takes the memory lock of the process, which a task waiting for a hung
// filesystem may hold, so processes with a task in D state are left out.
func (s *holderSearch) addMappings(id int) {
	tasks, err := s.host.Files.List(proc.File(id, "task"))
	if err != nil {
		return
	}
	for _, task := range tasks {
		data, err := s.host.Files.Read(proc.File(id, path.Join("task", task, "stat")))
		if stat, parseErr := proc.ParseStat(data); err != nil || parseErr != nil || stat.State == 'D' {
			return
		}
	}
	maps, err := s.host.Files.Read(proc.File(id, "maps"))
	if err != nil {
		return
	}
	for i, thing := range s.things {
		if hasFileBelow(maps, thing.Path) {
			s.add(i, "mapped")
		}
	}
}

// hasFileBelow reports whether a table as in /proc/PID/maps has a file below dir.
func hasFileBelow(maps []byte, dir string) bool {
	for {
		at := bytes.Index(maps, []byte(dir))
		if at < 0 {
			return false
		}
		line, rest, _ := bytes.Cut(maps[at:], []byte("\n"))
		if at > 0 && maps[at-1] == ' ' && mount.Below(string(line), dir) {
			return true
		}
		maps = rest
	}
}

// add adds a holding of the process once.
func (s *holderSearch) add(thing int, how string) {
	pid := s.pid
	for _, known := range s.found[thing] {
		if known.PID == pid && known.How == how {
			return
		}
	}
	if len(s.found[thing]) >= maxHoldings {
		return
	}
	holding := Holding{PID: pid, How: how, Comm: "?"}
	if stat, err := s.host.ProcStat(pid); err == nil {
		holding.Comm = stat.Comm
	}
	if cgroups, err := s.host.ProcCgroups(pid); err == nil {
		for _, name := range cgroups {
			if uid, _, ok := s.host.Paths.PodOfCgroup(name); ok {
				holding.UID = uid
			}
		}
	}
	s.found[thing] = append(s.found[thing], holding)
}

// NetworkNamespace returns the inode of the network namespace of a process: see proc.Namespace.
func NetworkNamespace(h *host.Host, pid int) (uint64, error) {
	link, _, err := proc.Namespace(h.Files, pid, "net")
	if err != nil {
		return 0, err
	}
	return ParseNamespace(link, "net")
}

// ParseNamespace returns the inode in the name of a namespace: "net:[4026531840]".
func ParseNamespace(name, kind string) (uint64, error) {
	number, ok := strings.CutPrefix(name, kind+":[")
	number, closed := strings.CutSuffix(number, "]")
	inode, err := strconv.ParseUint(number, 10, 64)
	if !ok || !closed || err != nil {
		return 0, fmt.Errorf("namespace %q: want %s:[inode]", hosterr.Clip(name), kind)
	}
	return inode, nil
}
