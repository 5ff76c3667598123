package mutate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSysctl bounds the value of a setting, in bytes.
const maxSysctl = 1024

// WriteSysctl sets a kernel setting, named by its path below /proc/sys, if its value is still from. It does not create
// a setting that does not exist.
func (d *Mutator) WriteSysctl(name, from, to string) error {
	if !isLocal(name) || path.Clean(name) != name || strings.ContainsAny(to, "\x00\n") || len(to) > maxSysctl {
		return refuse("%q is not a setting with one line as its value", name)
	}
	base, err := openBase("/proc/sys")
	if err != nil {
		return err
	}
	defer unix.Close(base)
	fd, err := openBelow(base, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, resolveBeneath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", name, err)
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return refuse("%s is not a file of proc", name)
	}
	buffer := make([]byte, maxSysctl+1)
	n, err := unix.Pread(fd, buffer, 0)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if now := string(buffer[:n]); !slices.Equal(strings.Fields(now), strings.Fields(from)) {
		return changed("%s is %q instead of %q", name, strings.TrimSpace(now), from)
	}
	written, err := unix.Pwrite(fd, []byte(to+"\n"), 0)
	if err == nil && written != len(to)+1 {
		err = errors.New("the kernel took only a part of it")
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
