package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/naming"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Place is the target of a path: a filesystem, and the path in it from the filesystem's own root. Two paths to the same
// place are the same file, in any namespace and through any binds.
type Place struct{ device, Path string }

// Around returns the mount that contains a path without symbolic links, from a mount table only. If there are several,
// the one with the longest point counts, and of those on one point the last: it covers the others.
func Around(table []Mount, name string) (around Mount, ok bool) {
	for _, m := range table {
		if Below(name, m.Point) && (!ok || len(m.Point) >= len(around.Point)) {
			around, ok = m, true
		}
	}
	return around, ok
}

// Located returns the place of a clean absolute path: see Around.
func Located(table []Mount, name string) (Place, bool) {
	m, ok := Around(table, name)
	if !ok {
		return Place{}, false
	}
	return Place{m.Device(), naming.Rebase(name, m.Point, m.Root)}, true
}

// Within reports whether p is dir or lies in it.
func (p Place) Within(dir Place) bool { return p.device == dir.device && Below(p.Path, dir.Path) }

// Real returns a path of the host without symbolic links. Use it only for the administrator's directories.
func Real(h *host.Host, name string) (string, error) {
	resolved, err := filepath.EvalSymlinks(h.Files.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return path.Clean(name), nil
	}
	return resolved, err
}

// Follow resolves the symbolic links of a path that lie on the mounts in on (IDs). It accesses no other filesystem: if
// the path leads to one, or does not exist, the rest stays unresolved.
func Follow(files host.Files, table []Mount, on map[int]bool, name string) string {
	const most = 40 // links in one path, as in the kernel
	at, rest := "/", path.Clean(name)
	for links := 0; rest != ""; {
		part, after, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		rest = after
		if part == "" || part == "." {
			continue
		}
		next := path.Join(at, part) // the parent, of ".."
		around, _ := Around(table, next)
		if part == ".." || !on[around.ID] || around.Point == next {
			at = next
			continue
		}
		target, err := files.Link(next)
		switch {
		case errors.Is(err, unix.EINVAL): // no link
			at = next
		case err != nil || links == most:
			return path.Join(next, rest)
		default:
			if links++; path.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + rest
		}
	}
	return at
}

// MountedAt is a mount, and a process that sees it.
type MountedAt struct {
	PID   int
	Point string
}

// mountedOn returns the place that a mount covers.
func mountedOn(m, parent Mount) Place {
	if parent.ID == 0 || !Below(m.Point, parent.Point) {
		return Place{}
	}
	return Place{parent.Device(), naming.Rebase(m.Point, parent.Point, parent.Root)}
}

// MountedFrom finds a mount of a part of the file or directory name, or a mount on it, in any mount namespace: deleting
// name takes the data, or the mount, from every process that sees that mount. The zero value means that there is none.
// The parent of name must be the agent's own.
func MountedFrom(ctx context.Context, h *host.Host, name string) (MountedAt, error) {
	parent, err := Real(h, path.Dir(name))
	if err != nil {
		return MountedAt{}, err
	}
	table, err := Table(h)
	if err != nil {
		return MountedAt{}, err
	}
	at, ok := Located(table, path.Join(parent, path.Base(name)))
	if !ok {
		return MountedAt{}, fmt.Errorf("%s lies on no mount", name)
	}
	return seenFrom(ctx, h, func(m, parent Mount) bool {
		return (Place{m.Device(), m.Root}).Within(at) || mountedOn(m, parent).Within(at)
	})
}

// Elsewhere is MountedFrom for a directory that may have a filesystem of its own. That this is mounted on it, here or in a
// copy of the host's mounts, is no other use of it: only what is mounted somewhere else, or further in, is.
func Elsewhere(ctx context.Context, h *host.Host, name string) (MountedAt, error) {
	resolved, err := Real(h, name)
	if err != nil {
		return MountedAt{}, err
	}
	table, err := Table(h)
	if err != nil {
		return MountedAt{}, err
	}
	own, ok := Around(table, resolved)
	if !ok || own.Point != resolved {
		return MountedFrom(ctx, h, name)
	}
	at, point := Place{own.Device(), own.Root}, Place{}
	for _, m := range table {
		if m.ID == own.Parent {
			point = mountedOn(own, m)
		}
	}
	return seenFrom(ctx, h, func(m, parent Mount) bool {
		if (Place{m.Device(), m.Root}) == at && point != (Place{}) && mountedOn(m, parent) == point {
			return false
		}
		return (Place{m.Device(), m.Root}).Within(at) || mountedOn(m, parent).Within(at)
	})
}

// seenFrom finds a mount for which is says yes, in any mount namespace.
func seenFrom(ctx context.Context, h *host.Host, is func(m, parent Mount) bool) (MountedAt, error) {
	pids, err := h.PIDs()
	if err != nil {
		return MountedAt{}, err
	}
	seen := map[string]bool{}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return MountedAt{}, ctx.Err()
		}
		var namespace string
		var mounts []Mount // none: the namespace has been read
		err := proc.Shown(h.Files, pid, func(id int) (err error) {
			mounts = nil
			if namespace, err = h.Files.Link(proc.File(id, "ns/mnt")); err == nil && seen[namespace] || proc.Gone(err) {
				return err
			}
			// If the kernel does not show the namespace, read the table itself.
			mounts, err = TableOf(h, id)
			return err
		})
		switch {
		case err == nil && mounts == nil, proc.Left(err): // as a zombie
			continue
		case err != nil:
			return MountedAt{}, err
		}
		if namespace != "" {
			seen[namespace] = true
		}
		byID := make(map[int]Mount, len(mounts))
		for _, m := range mounts {
			byID[m.ID] = m
		}
		for _, m := range mounts {
			if is(m, byID[m.Parent]) {
				return MountedAt{pid, m.Point}, nil
			}
		}
	}
	return MountedAt{}, nil
}
