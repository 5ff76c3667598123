// Package netlink asks the kernel for routes, sockets and links.
package netlink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PortUse is how many local ports are in use between one local address and one service. For another service the same
// ports can be used once more.
type PortUse struct {
	Local netip.Addr
	Peer  netip.AddrPort
	Count int
}

// LookupRoute connects a datagram socket, which is a lookup of the route (rules and all tables included) and no packet.
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

const (
	// diagStates are those in which a socket holds its port against others: established, closing and in TIME_WAIT.
	// Not those that listen or are closed.
	diagStates = 0xfff &^ (1<<7 | 1<<10)
	// maxPeers bounds what is counted. Beyond, a peer that was not seen among the first so many is not counted.
	maxPeers = 1 << 16
)

// tie is one local address with one service.
type tie struct {
	local netip.Addr
	peer  netip.AddrPort
}

// BusiestPorts implements host.Network.BusiestPorts.
func BusiestPorts(ctx context.Context, first, last uint16) (PortUse, error) {
	counts := map[tie]int{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := DiagRequest{Family: family, States: diagStates}.Dump(func(s DiagSocket) bool {
			if port := s.local.Port(); port >= first && port <= last {
				t := tie{s.local.Addr(), s.Peer}
				if _, known := counts[t]; known || len(counts) < maxPeers {
					counts[t]++
				}
			}
			return ctx.Err() == nil
		})
		// A table that changes while it is read is the normal case here; some more or less are no matter.
		if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
			return PortUse{}, fmt.Errorf("list TCP sockets: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return PortUse{}, fmt.Errorf("list TCP sockets: %w", err)
	}
	var most PortUse
	for t, n := range counts {
		if n > most.Count {
			most = PortUse{t.local, t.peer, n}
		}
	}
	return most, nil
}
