package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenCgroup opens a cgroup's directory and makes sure that it is the evaluated one. A nil id accepts any.
func OpenCgroup(point, name string, id *FileID) (int, error) {
	base, err := OpenBase(point)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	fd, err := openIfThere(base, strings.TrimPrefix(name, "/"), unix.O_RDONLY|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return -1, err
	}
	st, err := StatAt(fd, "")
	if err == nil && id != nil && st.Ino != id.Inode {
		err = Changed("cgroup %s is inode %d instead of %d", name, st.Ino, id.Inode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// UnpopulatedTree returns the cgroup and those below it, if no process is in any of them.
func UnpopulatedTree(fd int) ([]string, error) {
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

// removeCgroup checks the whole subtree first: if it contains a process, no cgroup is removed.
func removeCgroup(r Request) error {
	r.Path = string(r.Name)
	fd, err := OpenCgroup(r.Base, r.Path, &r.File)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := UnpopulatedTree(fd)
	if err != nil {
		return err
	}
	for i := len(names) - 1; i > 0; i-- {
		if err := removeOne(fd, names[i], r.ForceEmpty); err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
	return removeTop(fd, r)
}

// removeTop removes the evaluated cgroup itself, by its name in its parent.
func removeTop(fd int, r Request) error {
	dropCache(fd, ".", r.ForceEmpty)
	base, err := OpenBase(r.Base)
	if err != nil {
		return err
	}
	defer unix.Close(base)
	parentName, name := path.Split(r.Path)
	parent, err := OpenBelow(base, path.Join(".", parentName), unix.O_PATH|unix.O_DIRECTORY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	st, err := StatAt(parent, name)
	if err != nil {
		return err
	}
	if st.Ino != r.File.Inode {
		return Changed("cgroup %s is inode %d instead of %d", r.Path, st.Ino, r.File.Inode)
	}
	return Gone(r.Path, unix.Unlinkat(parent, name, unix.AT_REMOVEDIR))
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
			return nil, Refuse("more than %d cgroups", maxTree)
		}
	}
	return names, nil
}

func childCgroups(top int, name string) ([]string, error) {
	fd, err := OpenBelow(top, name, unix.O_RDONLY|unix.O_DIRECTORY, resolveInside)
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
		if st, err := StatAt(fd, entry); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			below = append(below, path.Join(name, entry))
		}
	}
	return below, nil
}

// unpopulated makes sure that no process and no thread is in a cgroup. If the agent runs outside the host's PID
// namespace, v2 shows 0 for each, which counts too.
func unpopulated(top int, name string) error {
	for _, file := range []string{"cgroup.procs", "tasks", "cgroup.threads"} {
		data, err := ReadBelow(top, path.Join(name, file))
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

func ReadBelow(dir int, name string) ([]byte, error) {
	fd, err := OpenBelow(dir, name, unix.O_RDONLY, resolveInside)
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
	return Gone(name, unix.Unlinkat(parent, path.Base(name), unix.AT_REMOVEDIR))
}

// dropCache empties the page cache of a v1 memory cgroup before its removal, so that the cgroup does not linger as a
// dying one until that cache is dropped. Errors are ignored: the removal does not depend on it.
func dropCache(top int, name string, wanted bool) {
	if wanted {
		_ = Write(top, path.Join(name, "memory.force_empty"), "0")
	}
}

// Write writes to a file below an open directory.
func Write(dir int, name, value string) error {
	fd, err := OpenBelow(dir, name, unix.O_WRONLY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write %q to %s: %w", value, name, err)
	}
	return nil
}
