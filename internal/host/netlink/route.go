package netlink

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LookupRoute connects a datagram socket, which looks up the route (with rules and all tables) but sends no packet.
func LookupRoute(to netip.Addr) error {
	const discard = 9
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: discard, Addr: to.As16()})
	if to.Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: discard, Addr: to.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, address); err != nil {
		return fmt.Errorf("route to %s: %w", to, err)
	}
	return nil
}

// RouteDevice sends RTM_GETROUTE, which needs no lock, and SIOCGIFNAME.
func RouteDevice(to netip.Addr) (string, error) {
	socket, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open route socket: %w", err)
	}
	defer socket.Close()
	routes, err := socket.RouteGet(to.AsSlice())
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", to, err)
	}
	if len(routes) == 0 || routes[0].LinkIndex <= 0 {
		return "", fmt.Errorf("route to %s: no device", to)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	request.SetUint32(uint32(routes[0].LinkIndex)) //nolint:gosec // positive
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request); err != nil {
		return "", fmt.Errorf("name of device %d: %w", routes[0].LinkIndex, err)
	}
	return request.Name(), nil
}
