package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is a real filesystem on a loop device that can be made to fail.
type Disk struct {
	Image, Device, Mount string
}

// NewDisk makes an ext4 filesystem of 32 MiB in dir and mounts it like a node's data disk: errors=remount-ro.
func NewDisk(ctx context.Context, dir string) (*Disk, error) {
	d := &Disk{Image: filepath.Join(dir, "disk.img"), Mount: filepath.Join(dir, "data")}
	if err := os.MkdirAll(d.Mount, 0o755); err != nil {
		return nil, err
	}
	image, err := os.Create(d.Image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(image.Truncate(32<<20), image.Close()); err != nil {
		return nil, err
	}
	if _, err := output(ctx, "mkfs.ext4", "-q", "-F", d.Image); err != nil {
		return nil, err
	}
	if d.Device, err = output(ctx, "losetup", "--find", "--show", d.Image); err != nil {
		return nil, err
	}
	return d, d.MountAgain(ctx)
}

// MountAgain mounts the filesystem, after a check of it as an administrator would do. It waits while the device is in use:
// a process with mounts of its own may have a copy of the mount until it ends.
func (d *Disk) MountAgain(ctx context.Context) error {
	err := WaitFor(ctx, d.Device+" to be free", func() error {
		_, err := output(ctx, "e2fsck", "-f", "-p", d.Device)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 { // errors were corrected
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return unix.Mount(d.Device, d.Mount, "ext4", 0, "errors=remount-ro")
}

// Fail makes the kernel find an error in the filesystem, like a bad block. It becomes read-only by itself.
func (d *Disk) Fail() error {
	name := filepath.Join("/sys/fs/ext4", filepath.Base(d.Device), "trigger_fs_error")
	return os.WriteFile(name, []byte("nodeagent test"), 0o200)
}

// Unmount unmounts the filesystem.
func (d *Disk) Unmount() error {
	if err := unix.Unmount(d.Mount, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", d.Mount, err)
	}
	return nil
}

// Remove removes all traces of the disk.
func (d *Disk) Remove(ctx context.Context) error {
	err := unix.Unmount(d.Mount, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // not mounted
	}
	_, detached := output(ctx, "losetup", "--detach", d.Device)
	return errors.Join(err, detached, os.RemoveAll(d.Image), os.Remove(d.Mount))
}

// output returns the standard output of a program. Its standard error is only used for errors: ctr warns of
// deprecations each time.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var failure bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &failure
	out, err := cmd.Output()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s %s", name, strings.Join(args, " "), err, text,
			bytes.TrimSpace(failure.Bytes()))
	}
	return text, nil
}
