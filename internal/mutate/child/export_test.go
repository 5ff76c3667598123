package child

import (
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

// UnmountAndCheck makes the child's change in this process, with another view of the mount table.
func UnmountAndCheck(podsDir, uid string, m Mount, table func() ([]mountinfo.Mount, error)) error {
	r := Request{Op: OpUnmount, Base: podsDir, UID: uid, Mount: m, Flags: unix.UMOUNT_NOFOLLOW}
	_, err := unmountAndCheck(r, table)
	return err
}

// ListDir lists one directory below an open one.
func ListDir(parent int, name string, dir Entry) ([]Entry, error) { return listDir(parent, name, dir) }
