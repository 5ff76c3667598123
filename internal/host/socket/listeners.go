// Package socket finds the processes that listen on Unix sockets, and the sockets of kubelet's plugins. It reads /proc
// and directories, and makes no connections.
package socket

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Listener is a listening Unix socket with a name in the filesystem.
type Listener struct {
	Path   string // on the host, if it is in one of the directories; otherwise the owner's name for it
	Inside bool   // it is in one of the given directories
	PID    int    // a process that holds it; 0: none was found
}

// Bounds of one search.
const (
	maxListenerFiles = 1 << 20
	maxListeners     = 10_000
)

// Listeners finds the listening Unix sockets, and which of them are in one of dirs. /proc/net/unix shows only those of
// one network namespace, so it is read for each. A socket's name is the one that its owner gave to bind(2), in its own
// mount namespace (/csi/csi.sock), so it is resolved with the owner's mount table. A socket whose file was deleted
// still has its name. An error means that some data could not be read.
func Listeners(ctx context.Context, h *host.Host, dirs ...string) ([]Listener, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	names, err := listeningNames(ctx, h, pids)
	if err != nil {
		return nil, err
	}
	owners, err := socketHolders(ctx, h, pids, names)
	if err != nil {
		return nil, err
	}
	table, err := mount.Table(h)
	if err != nil {
		return nil, err
	}
	locations := map[string]mount.Place{} // of dirs
	for _, dir := range dirs {
		resolved, err := mount.Real(h, dir)
		if err != nil {
			return nil, err
		}
		if at, ok := mount.Located(table, resolved); ok {
			locations[dir] = at
		}
	}
	tables := map[int][]mount.Mount{}
	all := make([]Listener, 0, len(names))
	for inode, name := range names {
		l := Listener{Path: name}
		for _, dir := range dirs {
			l.Inside = l.Inside || mount.Below(name, dir)
		}
		for _, pid := range owners[inode] {
			if _, ok := tables[pid]; !ok {
				_ = proc.Shown(h.Files, pid, func(id int) (err error) {
					tables[pid], err = mount.TableOf(h, id)
					return err
				})
			}
			at, ok := mount.Located(tables[pid], absolute(h, pid, name))
			if !ok {
				continue // it has ended, or its paths cannot be resolved: skip this owner
			}
			l.PID = pid
			for dir, location := range locations {
				if at.Within(location) {
					l.Path, l.Inside = path.Join(dir, strings.TrimPrefix(at.Path, location.Path)), true
				}
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// absolute returns the absolute path of a name that a process gave to bind(2).
func absolute(h *host.Host, pid int, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	cwd := "/"
	_ = proc.Shown(h.Files, pid, func(id int) error {
		dir, err := h.Files.Link(proc.File(id, "cwd"))
		if err == nil {
			cwd = dir
		}
		return err
	})
	return path.Join("/", cwd, name)
}

// listeningNames returns the names of the listening sockets of all network namespaces, by inode.
func listeningNames(ctx context.Context, h *host.Host, pids []int) (map[string]string, error) {
	names, read := map[string]string{}, map[string]bool{} // read: network namespaces
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var namespace string
		var data []byte
		err := proc.Shown(h.Files, pid, func(id int) (err error) {
			namespace, err = h.Files.Link(proc.File(id, "ns/net"))
			if proc.Gone(err) || err == nil && read[namespace] {
				return err
			}
			data, err = h.Files.Read(proc.File(id, "net/unix")) // even if the namespace's name is unknown
			return err
		})
		if proc.Left(err) || err == nil && read[namespace] {
			continue
		}
		if err != nil {
			return nil, err
		}
		if namespace != "" {
			read[namespace] = true
		}
		discover.ParseListening(string(data), func(inode, name string) {
			if !strings.HasPrefix(name, "@") { // abstract names are not files
				names[inode] = name
			}
		})
		if len(names) > maxListeners {
			return nil, fmt.Errorf("more than %d Unix sockets listen", maxListeners)
		}
	}
	if len(read) == 0 {
		return nil, errors.New("no network namespace could be read")
	}
	return names, nil
}

// socketHolders returns the processes that hold sockets, by inode. It skips a process whose open files it may not read.
func socketHolders(ctx context.Context, h *host.Host, pids []int, sockets map[string]string) (map[string][]int, error) {
	const maxHolders = 8 // processes of one socket
	owners, files := map[string][]int{}, 0
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		_, _ = holders.Opens(h, pid, func(target string) bool {
			inode, ok := strings.CutPrefix(target, "socket:[")
			inode = strings.TrimSuffix(inode, "]")
			if _, wanted := sockets[inode]; ok && wanted && len(owners[inode]) < maxHolders &&
				!slices.Contains(owners[inode], pid) {
				owners[inode] = append(owners[inode], pid)
			}
			files++
			return files > maxListenerFiles
		})
		if files > maxListenerFiles {
			return nil, fmt.Errorf("processes have more than %d files open", maxListenerFiles)
		}
	}
	return owners, nil
}
