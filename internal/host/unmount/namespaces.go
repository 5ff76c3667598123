package unmount

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// maxNamespaces bounds the namespaces to read: each container has one.
const maxNamespaces = 1 << 13

// OtherNamespaces returns the mount table of each mount namespace except this process's own, as one of its
// processes sees it. It does not find namespaces without a process. It is an error if one could not be read. The reader
// may be nil.
func OtherNamespaces(tree files.Tree, reader *mountinfo.Reader) ([]Namespace, error) {
	own, err := tree.Link("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	here, err := mountinfo.OfProcess(tree, os.Getpid(), reader.ReadOther)
	if err != nil {
		return nil, err
	}
	pids, err := (&proc.Scan{Root: tree.Root}).IDs("/proc")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{own: true}
	var all []Namespace
	for _, pid := range pids {
		var name string
		var mounts []Mount // none: the namespace has been read
		err := proc.Shown(tree, pid, func(id int) (err error) {
			if name, err = tree.Link(proc.File(id, "ns/mnt")); err != nil {
				name = strconv.Itoa(pid) // ended, or its namespaces cannot be read
			}
			if mounts = nil; seen[name] {
				return nil
			}
			mounts, err = mountinfo.OfProcess(tree, id, reader.ReadOther)
			return err
		})
		switch {
		case err == nil && mounts == nil:
			continue
		case errors.Is(err, mountinfo.ErrNoMounts), errors.Is(err, syscall.EINVAL), err != nil && ended(tree, pid):
			continue // another process may see more; EINVAL: it is exiting, and has left its namespaces
		case err != nil:
			return nil, fmt.Errorf("mount namespace of process %d: %w", pid, err)
		case len(all) == maxNamespaces:
			return nil, fmt.Errorf("more than %d mount namespaces", maxNamespaces)
		}
		seen[name] = true
		// IDs are unique among all namespaces.
		if !slices.ContainsFunc(here, func(m Mount) bool { return m.ID == mounts[0].ID }) {
			all = append(all, Namespace{PID: pid, Mounts: mounts})
		}
	}
	return all, nil
}

// ended reports whether a process is gone, or is a zombie, which has no mounts any more.
func ended(tree files.Tree, pid int) bool {
	stat, err := proc.Read(tree, proc.File(pid, "stat"))
	return proc.Gone(err) || err == nil && !proc.Alive(stat)
}
