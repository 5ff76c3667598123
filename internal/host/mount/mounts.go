// Package mount reads mount tables of the host. Package unmount beside it predicts the effects of an unmount.
package mount

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/naming"
)

// Mount is one line of a mount table.
type Mount = mountinfo.Mount

// recentFor is the maximum age of a table returned by Recent. Changes that the kernel does not report are seen after
// this time.
const recentFor = 5 * time.Minute

// Table returns the mount table of the host: that of the process which stands for init. It is read each time, but may
// be shared with others where it has not changed: it must not be modified.
func Table(h *host.Host) ([]Mount, error) {
	return mountinfo.OfProcess(h.Files, initPID(h), h.Mounts.ReadFile)
}

// Recent is Table for those who want to know what is mounted where: the table is read again where something was mounted
// or unmounted, and every five minutes. Who wants to know whether a filesystem became read-only, which the kernel tells
// nobody, needs Filesystems; who changes something, Table. Reading costs the kernel some 5 microseconds for each mount.
//
// A table that costs too much (see mountinfo.Reader.Known) is read little by little: Recent then returns what is known of it,
// with the error. Who can use that calls Known or Visible.
func Recent(h *host.Host) ([]Mount, error) { return recent(h, nil) }

// Filesystems is Recent for those who want to know, too, whether a filesystem with a wanted mount became read-only.
func Filesystems(h *host.Host, wanted func(Mount) bool) ([]Mount, error) { return recent(h, wanted) }

func recent(h *host.Host, wanted func(Mount) bool) ([]Mount, error) {
	name := mountinfo.NameOf(initPID(h))
	mounts, ok, err := h.Mounts.Recent(h.Files.Path(name), recentFor, wanted)
	if !ok {
		mounts, err = h.Mounts.Known(h.Files.Path(name), files.Max)
	}
	if err == nil && len(mounts) == 0 {
		return nil, fmt.Errorf("read %s: %w", name, mountinfo.ErrNoMounts)
	}
	return mounts, err
}

// Visible returns a table for readers that need the visible mounts only: unknown mounts covered by a stack are no error. A
// release needs those too.
func Visible(mounts []Mount, err error) ([]Mount, error) {
	if cut, ok := errors.AsType[*mountinfo.CutError](err); ok && cut.Hidden > 0 {
		return mounts, nil
	}
	return mounts, err
}

// Known is Visible for who can use a part of the table: it separates the reason for a partial table (cut) from a failure.
func Known(mounts []Mount, err error) (known []Mount, cut *mountinfo.CutError, failed error) {
	mounts, err = Visible(mounts, err)
	if cut, ok := errors.AsType[*mountinfo.CutError](err); ok && len(mounts) > 0 {
		return mounts, cut, nil
	}
	return mounts, nil, err
}

func initPID(h *host.Host) int { return max(h.Paths.InitPID, 1) }

// TableOf returns the mount table that a process sees. It works without touching any of the mounts.
func TableOf(h *host.Host, pid int) ([]Mount, error) {
	return mountinfo.OfProcess(h.Files, pid, h.Mounts.ReadOther)
}

// Below reports whether name is dir or lies below it: see naming.Below.
func Below(name, dir string) bool { return naming.Below(name, dir) }
