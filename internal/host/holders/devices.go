package holders

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// ServesDevice returns the device that a process serves from user space to the rest of the machine, and that would die
// with it: the name of /dev/fuse, /dev/cuse, a ublk or an nbd device that it holds open, or of an nbd device that the
// kernel says it has set up. Empty: none. A device node under another name is recognized only for FUSE, on Linux 6.16
// and later.
func ServesDevice(h *host.Host, pid int) (device string, err error) {
	left := maxHolderFiles
	found, err := anyFile(h, pid, &left, func(dir, fd string) (bool, error) {
		name, err := h.Files.Link(dir + "/fd/" + fd)
		if err != nil {
			return false, proc.UnlessGone(err)
		}
		if fuse, err := isFUSE(h, dir, fd, anyConnection); fuse || err != nil {
			device = name
			return fuse, err
		}
		device = strings.TrimSuffix(name, " (deleted)")
		return isUserspaceDevice(device), nil
	})
	if err != nil || found {
		return device, err
	}
	return nbdOf(h, pid)
}

// Serves returns which of mounts a process may serve by FUSE, as "point (type)"; otherwise the device that it serves,
// like ServesDevice. Empty: none. left bounds the open files to check.
func Serves(h *host.Host, pid int, mounts []mount.Mount, left *int) (what string, err error) {
	found, err := anyFile(h, pid, left, func(dir, fd string) (bool, error) {
		name, err := h.Files.Link(dir + "/fd/" + fd)
		if err != nil {
			return false, proc.UnlessGone(err)
		}
		if what = strings.TrimSuffix(name, " (deleted)"); isUserspaceDevice(what) {
			return true, nil
		}
		if fuse, err := isFUSE(h, dir, fd, anyConnection); err != nil || !fuse {
			return false, err
		}
		for _, m := range mounts {
			connection, ok := connectionOf(m)
			if !ok {
				continue
			}
			if served, err := isFUSE(h, dir, fd, connection); err != nil || served {
				what = fmt.Sprintf("%s (%s)", m.Point, m.FSType)
				return served, err
			}
		}
		return false, nil
	})
	if err != nil || found {
		return what, err
	}
	return nbdOf(h, pid)
}

// connectionOf returns the connection of a FUSE mount, or anyConnection for one on a block device.
func connectionOf(m mount.Mount) (connection int, ok bool) {
	kind, _, _ := strings.Cut(m.FSType, ".")
	major, minor, _ := strings.Cut(m.Device(), ":")
	if number, err := strconv.Atoi(minor); kind == "fuse" && major == "0" && err == nil {
		return number, true
	}
	return anyConnection, kind == "fuse" || kind == "fuseblk"
}

// isUserspaceDevice reports whether a path is that of a device served by a program: /dev/cuse, /dev/nbd0,
// /dev/ublk-control, /dev/ublkc0. https://docs.kernel.org/block/ublk.html
func isUserspaceDevice(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(name, "/") && (base == "cuse" || strings.HasPrefix(base, "ublk") || isNBD(base))
}

// isNBD reports whether a name is that of a network block device, or of a partition of one: nbd0, nbd0p1.
func isNBD(base string) bool {
	rest, ok := strings.CutPrefix(base, "nbd")
	return ok && rest != "" && strings.Trim(rest, "0123456789p") == ""
}

// nbdOf returns the network block device that a process has set up: rbd-nbd does so over netlink, and holds only a
// socket. While the device is connected, the kernel shows the ID of the thread in /sys/block/nbdN/pid
// (drivers/block/nbd.c: pid_show).
func nbdOf(h *host.Host, pid int) (device string, err error) {
	disks, err := h.Files.List("/sys/block")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return "", err
	}
	for _, disk := range disks {
		if !isNBD(disk) {
			continue
		}
		text, err := h.Files.Text(path.Join("/sys/block", disk, "pid"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not connected
		}
		if err != nil {
			return "", err
		}
		server, err := strconv.Atoi(text)
		if err != nil {
			return "", err
		}
		if _, err := h.TaskStat(pid, server); err == nil {
			return "/dev/" + disk, nil
		} else if proc.UnlessGone(err) != nil {
			return "", err
		}
	}
	return "", nil
}
