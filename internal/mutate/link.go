package mutate

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is the identity of a network interface of the host. Names are not part of it: a pod that is created again
// under the same name has an interface of the same name.
type Link struct {
	Index     int
	PeerIndex int
	PeerNetns int // netnsid of the peer, as this namespace numbers it; -1 if the peer is in this namespace
}

// DeleteLink deletes one end of a veth pair, and with it the other. It is no error if the link is gone.
func (d *Mutator) DeleteLink(l Link) error {
	if l.Index <= 1 {
		return refuse("link %d", l.Index)
	}
	link, err := findLink(l.Index)
	if err != nil || link == nil {
		return err
	}
	now := link.Attrs()
	if link.Type() != "veth" {
		return changed("link %d (%s) is of type %s", l.Index, now.Name, link.Type())
	}
	if now.ParentIndex != l.PeerIndex || now.NetNsID != l.PeerNetns {
		return changed("link %d (%s) has peer %d in namespace %d instead of %d in %d",
			l.Index, now.Name, now.ParentIndex, now.NetNsID, l.PeerIndex, l.PeerNetns)
	}
	if err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}); err != nil &&
		!linkGone(err) {
		return fmt.Errorf("delete link %d (%s): %w", l.Index, now.Name, err)
	}
	return nil
}

// LinkGone reports whether the link no longer exists: its index is unused, or used by a link with another peer. A link
// whose peer has moved to another namespace still exists.
func (d *Mutator) LinkGone(l Link) (bool, error) {
	link, err := findLink(l.Index)
	if err != nil {
		return false, err
	}
	return link == nil || link.Type() != "veth" || link.Attrs().ParentIndex != l.PeerIndex, nil
}

// findLink returns nil if there is no link with that index.
func findLink(index int) (netlink.Link, error) {
	link, err := netlink.LinkByIndex(index)
	if linkGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %d: %w", index, err)
	}
	return link, nil
}

func linkGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}
