package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loopDevices returns the loop devices whose backing file is below dir.
func loopDevices(dir string) []string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is well-formed
	var found []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		backing := strings.TrimSuffix(strings.TrimSpace(string(data)), " (deleted)")
		if err == nil && within(backing, dir) {
			found = append(found, filepath.Join("/dev", strings.Split(file, "/")[3]))
		}
	}
	return found
}

func detachLoops(dir string) error {
	var errs []error
	for _, device := range loopDevices(dir) {
		file, err := os.Open(device)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, fmt.Errorf("detach %s: %w", device, err))
		}
		file.Close()
	}
	return errors.Join(errs...)
}

// abortFUSE ends the connections of FUSE filesystems mounted below dir: a process that waits for a hung server gets an
// error instead, and can be killed.
func abortFUSE(dir string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mountsWithin(mounts, dir) {
		if m.Type != "fuse" && m.Type != "fuseblk" && !strings.HasPrefix(m.Type, "fuse.") {
			continue
		}
		connection := m.Major<<20 | m.Minor // the kernel's own form of a device number
		err := overwrite(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", connection), "1")
		// without the control filesystem, a forced unmount aborts too, even if it fails
		if errors.Is(err, fs.ErrNotExist) {
			err = unix.Unmount(m.Point, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("abort %s: %w", m.Point, err))
		}
	}
	return errors.Join(errs...)
}

// unmountAll unmounts all mounts on and below dir, the topmost first. A mount that stays busy for three seconds,
// although every process of the lab has ended, is detached.
func unmountAll(dir string) error {
	deadline := time.Now().Add(3 * time.Second)
	for {
		mounts, err := readMounts()
		if err != nil {
			return err
		}
		left := mountsWithin(mounts, dir)
		if len(left) == 0 {
			return nil
		}
		flags := unix.UMOUNT_NOFOLLOW
		late := time.Now().After(deadline)
		if late {
			flags |= unix.MNT_DETACH
		}
		var errs []error
		for _, m := range left {
			if err := unix.Unmount(m.Point, flags); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s (%s): %w", m.Point, m.Type, err))
			}
		}
		if late && len(errs) == len(left) {
			return errors.Join(errs...)
		}
		if len(errs) > 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
}
