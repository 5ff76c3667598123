package mutate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// maxSysctl bounds the value of a setting, in bytes.
const maxSysctl = 1024

// MayWriteSysctl returns why a kernel setting could not get a value, as far as is known without writing it: its name or the
// value is malformed, it does not exist, or the agent may not write it.
func (d *Mutator) MayWriteSysctl(name, to string) error {
	fd, err := openSysctl(d.host.Files.Path("/proc/sys"), name, to)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// WriteSysctl sets a kernel setting, which is named by its path below /proc/sys, if its value still is from. A setting
// that does not exist is not created. A Refusal, also the kernel's, means that nothing was written.
func (d *Mutator) WriteSysctl(name, from, to string) error {
	fd, err := openSysctl("/proc/sys", name, to)
	if err != nil {
		return notBegun(err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return notBegun(fmt.Errorf("statfs %s: %w", name, err))
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return refuse("%s is not a file of proc", name)
	}
	buffer := make([]byte, maxSysctl+1)
	n, err := unix.Pread(fd, buffer, 0)
	if err != nil {
		return notBegun(fmt.Errorf("read %s: %w", name, err))
	}
	if now := string(buffer[:n]); !slices.Equal(strings.Fields(now), strings.Fields(from)) {
		return changed("%s is %q instead of %q", name, strings.TrimSpace(now), from)
	}
	written, err := unix.Pwrite(fd, []byte(to+"\n"), 0)
	if isForbidden(err) || errors.Is(err, unix.EINVAL) {
		return refuse("the kernel does not set %s to %q: %v", name, to, err)
	}
	if err == nil && written != len(to)+1 {
		err = errors.New("the kernel took only a part of it")
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// openSysctl opens a setting for reading and writing, which changes nothing.
func openSysctl(dir, name, to string) (int, error) {
	if !child.IsLocal(name) || path.Clean(name) != name || strings.ContainsAny(to, "\x00\n") || len(to) > maxSysctl {
		return -1, refuse("%q is not a setting with one line as its value", name)
	}
	base, err := child.OpenBase(dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	fd, err := child.OpenBelow(base, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, child.ResolveBeneath)
	switch {
	case errors.Is(err, unix.ENOENT):
		return -1, refuse("the setting %s does not exist", name)
	case isForbidden(err):
		return -1, refuse("the agent may not write %s: %v", name, err)
	}
	return fd, err
}

func isForbidden(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS)
}
