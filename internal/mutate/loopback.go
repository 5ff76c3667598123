package mutate

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopbackIndex is the index of the loopback device in every network namespace.
const loopbackIndex = 1

// RestoreLoopback gives the host's loopback device the address 127.0.0.1/8 and sets it up. Its other settings stay.
func (d *Mutator) RestoreLoopback() error {
	link, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return fmt.Errorf("link %d: %w", loopbackIndex, err)
	}
	if link.Attrs().Flags&net.FlagLoopback == 0 {
		return changed("link %d (%s) is not the loopback device", loopbackIndex, link.Attrs().Name)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)},
		Scope: unix.RT_SCOPE_HOST}
	if err := netlink.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to %s: %w", address.IPNet, link.Attrs().Name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	return nil
}
