package mutate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Cgroup is the identity of one cgroup in one hierarchy.
type Cgroup struct {
	Dir    string // such as /sys/fs/cgroup/memory/kubepods/pod…
	UID    string // the pod it belongs to
	Driver string // of our kubelet, as evaluated: only its tree is ours. The configured one takes precedence
	File   FileID // of the directory
}

// RemoveCgroup removes an empty cgroup of a pod in one hierarchy, with the empty ones below it, leaf first. ErrBusy if
// a process is in any of them. If it belongs to a unit that systemd made for kubelet or the runtime, systemd is asked
// to stop that first.
//
// No content of a cgroup is ever deleted or moved: rmdir is the kernel's own guard against a process that enters
// meanwhile.
func (d *Mutator) RemoveCgroup(ctx context.Context, c Cgroup) error {
	at, err := d.placeCgroup(c)
	if err != nil {
		return err
	}
	if err := d.stopUnit(ctx, c, at); err != nil {
		return err
	}
	_, err = d.do(ctx, request{
		Op: opCgroup, Base: at.mount.Point, Name: []byte(strings.TrimPrefix(at.name, "/")), File: c.File,
		ForceEmpty: true,
	})
	return err
}

// cgroupPlace is the location of a pod's cgroup.
type cgroupPlace struct {
	host.CgroupPlace

	mount  mount.Mount   // of the hierarchy
	mounts []mount.Mount // of all hierarchies
	name   string        // its path in the hierarchy
}

// placeCgroup finds the hierarchy of a cgroup and makes sure that the cgroup belongs to the pod.
func (d *Mutator) placeCgroup(c Cgroup) (cgroupPlace, error) {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return cgroupPlace{}, err
	}
	var at cgroupPlace
	for _, m := range mounts {
		if m.Root != "/" || m.FSType != "cgroup" && m.FSType != "cgroup2" {
			continue
		}
		at.mounts = append(at.mounts, m)
		if len(m.Point) > len(at.mount.Point) && mount.Below(c.Dir, m.Point) {
			at.mount = m
		}
	}
	if at.mount.Point == "" || path.Clean(c.Dir) != c.Dir {
		return cgroupPlace{}, refuse("%s is in no mounted hierarchy", c.Dir)
	}
	at.name = "/" + strings.TrimPrefix(c.Dir[len(at.mount.Point):], "/")
	at.CgroupPlace, err = d.podCgroup(at.name, c.UID, c.Driver)
	return at, err
}

// podCgroup makes sure that a cgroup is a pod's, or below it, in the tree of our kubelet. A host has a tree for each
// cgroup driver, and another kubelet may keep its pods in the other one.
func (d *Mutator) podCgroup(cgroup, uid, driver string) (host.CgroupPlace, error) {
	paths := d.host.Paths
	if paths.CgroupDriver == "" {
		paths.CgroupDriver = driver
	}
	if paths.CgroupDriver == "" {
		return host.CgroupPlace{}, refuse("%s: it is not known which cgroup driver our kubelet has", cgroup)
	}
	place, ok := paths.PlaceOfCgroup(cgroup)
	if !ok || place.UID != uid || uid == "" {
		return host.CgroupPlace{}, refuse("%s is no cgroup of pod %s", cgroup, uid)
	}
	return place, nil
}

// openCgroup opens a cgroup's directory and makes sure that it is the evaluated one. A nil id accepts any.
func openCgroup(point, name string, id *FileID) (int, error) {
	base, err := openBase(point)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	fd, err := openIfThere(base, strings.TrimPrefix(name, "/"), unix.O_RDONLY|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return -1, err
	}
	st, err := statAt(fd, "")
	if err == nil && id != nil && st.Ino != id.Inode {
		err = changed("cgroup %s is inode %d instead of %d", name, st.Ino, id.Inode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// unpopulatedTree returns the cgroup and those below it, if no process is in any of them.
func unpopulatedTree(fd int) ([]string, error) {
	names, err := subtree(fd)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := unpopulated(fd, name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// removeCgroupChild checks the whole subtree first: if it contains a process, no cgroup is removed.
func removeCgroupChild(r request) error {
	r.Path = string(r.Name)
	fd, err := openCgroup(r.Base, r.Path, &r.File)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := unpopulatedTree(fd)
	if err != nil {
		return err
	}
	for i := len(names) - 1; i > 0; i-- {
		if err := removeOne(fd, names[i], r.ForceEmpty); err != nil && !errors.Is(err, errGone) {
			return err
		}
	}
	return removeTop(fd, r)
}

// removeTop removes the evaluated cgroup itself, by its name in its parent.
func removeTop(fd int, r request) error {
	dropCache(fd, ".", r.ForceEmpty)
	base, err := openBase(r.Base)
	if err != nil {
		return err
	}
	defer unix.Close(base)
	parentName, name := path.Split(r.Path)
	parent, err := openBelow(base, path.Join(".", parentName), unix.O_PATH|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	st, err := statAt(parent, name)
	if err != nil {
		return err
	}
	if st.Ino != r.File.Inode {
		return changed("cgroup %s is inode %d instead of %d", r.Path, st.Ino, r.File.Inode)
	}
	return gone(r.Path, unix.Unlinkat(parent, name, unix.AT_REMOVEDIR))
}

// subtree lists a cgroup and all below it, parents first.
func subtree(top int) ([]string, error) {
	names := []string{"."}
	for at := 0; at < len(names); at++ {
		below, err := childCgroups(top, names[at])
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		names = append(names, below...)
		if len(names) > maxTree {
			return nil, refuse("more than %d cgroups", maxTree)
		}
	}
	return names, nil
}

func childCgroups(top int, name string) ([]string, error) {
	fd, err := openBelow(top, name, unix.O_RDONLY|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	entries, err := file.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	var below []string
	for _, entry := range entries {
		if st, err := statAt(fd, entry); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			below = append(below, path.Join(name, entry))
		}
	}
	return below, nil
}

// unpopulated makes sure that no process and no thread is in a cgroup. If the agent runs outside the host's PID
// namespace, v2 shows 0 for each, which counts too.
func unpopulated(top int, name string) error {
	for _, file := range []string{"cgroup.procs", "tasks", "cgroup.threads"} {
		data, err := readBelow(top, path.Join(name, file))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			continue // v1 has no cgroup.threads, v2 no tasks; a threaded cgroup has no procs
		}
		if err != nil {
			return err
		}
		if fields := strings.Fields(string(data)); len(fields) > 0 {
			return fmt.Errorf("process %s is in it: %w", fields[0], unix.EBUSY)
		}
	}
	return nil
}

func readBelow(dir int, name string) ([]byte, error) {
	fd, err := openBelow(dir, name, unix.O_RDONLY, resolveInside)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// removeOne removes one cgroup below the evaluated one, by its name in its own parent, whatever the name is.
func removeOne(top int, name string, forceEmpty bool) error {
	dropCache(top, name, forceEmpty)
	parent, err := openIfThere(top, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return gone(name, unix.Unlinkat(parent, path.Base(name), unix.AT_REMOVEDIR))
}

// dropCache empties the page cache of a v1 memory cgroup before its removal, so that the cgroup does not linger as a
// dying one until that cache is dropped. Errors are ignored: the removal does not depend on it.
func dropCache(top int, name string, wanted bool) {
	if wanted {
		_ = write(top, path.Join(name, "memory.force_empty"), "0")
	}
}
