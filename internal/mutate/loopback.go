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

// MayRestoreLoopback returns why RestoreLoopback would do nothing.
func (d *Mutator) MayRestoreLoopback() error {
	if err := mayAdministerNetwork(); err != nil {
		return err
	}
	_, err := loopback()
	return err
}

// RestoreLoopback gives the loopback device of the host its address 127.0.0.1/8 and sets it up. What it has already
// stays.
func (d *Mutator) RestoreLoopback() error {
	link, err := loopback()
	if err != nil {
		return notBegun(err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)},
		Scope: unix.RT_SCOPE_HOST}
	if err := netlink.AddrAdd(link, address); isForbidden(err) {
		return refuse("the agent may not add an address to %s: %v", link.Attrs().Name, err)
	} else if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to %s: %w", address.IPNet, link.Attrs().Name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

func loopback() (netlink.Link, error) {
	link, err := netlink.LinkByIndex(loopbackIndex)
	if err != nil {
		return nil, fmt.Errorf("link %d: %w", loopbackIndex, err)
	}
	if link.Attrs().Flags&net.FlagLoopback == 0 {
		return nil, changed("link %d (%s) is not the loopback device", loopbackIndex, link.Attrs().Name)
	}
	return link, nil
}

// mayAdministerNetwork refuses where the agent has not the right to change links and addresses: capabilities(7).
func mayAdministerNetwork() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // 64 capabilities
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("the agent's own rights: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return refuse("the agent has not the right to change the network (CAP_NET_ADMIN)")
	}
	return nil
}
