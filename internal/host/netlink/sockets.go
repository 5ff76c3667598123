// Package netlink reads routes, TCP sockets and changes of links from the kernel, and returns them in the plain types
// of a network layout. It changes nothing, and never waits for the RTNL lock.
//
// It sends and decodes through github.com/vishvananda/netlink, with two exceptions. For TCP sockets, the library's
// SocketDiagTCP dumps all sockets in all states into memory: it filters neither states nor ports, but the agent needs
// one remote port, or counts. Its SocketGet queries with a dump, for which the kernel compares only the ports, and so
// may return the socket of another user at another loopback address. For changes of links, LinkSubscribe has no socket
// filter: every veth and bridge port of a pod would wake the agent and be decoded; and it ends at the first overrun
// (ENOBUFS), with an error that no longer wraps the errno.
package netlink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// PortUse is the number of local ports in use between one local address and one service. The same ports can be used
// again for another service.
type PortUse struct {
	Local netip.Addr
	Peer  netip.AddrPort
	Count int
}

const (
	// portHoldingStates are the states in which a socket keeps its port from others: established, closing and
	// TIME_WAIT, but not listening or closed.
	portHoldingStates = 0xfff &^ (1<<7 | 1<<10)
	// maxPeers bounds the pairs to count: only the first 65,536 pairs are counted.
	maxPeers = 1 << 16
)

// BusiestPorts implements host.Network.BusiestPorts.
func BusiestPorts(ctx context.Context, first, last uint16) (PortUse, error) {
	type pair struct {
		local netip.Addr
		peer  netip.AddrPort
	}
	counts := map[pair]int{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := TCPQuery{Family: family, States: portHoldingStates}.Each(func(s TCPSocket) bool {
			if port := s.Local.Port(); port >= first && port <= last {
				p := pair{s.Local.Addr(), s.Peer}
				if _, known := counts[p]; known || len(counts) < maxPeers {
					counts[p]++
				}
			}
			return ctx.Err() == nil
		})
		// The table normally changes while it is read; a few sockets more or less do not matter.
		if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
			return PortUse{}, fmt.Errorf("list TCP sockets: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return PortUse{}, fmt.Errorf("list TCP sockets: %w", err)
	}
	var busiest PortUse
	for p, n := range counts {
		if n > busiest.Count {
			busiest = PortUse{p.local, p.peer, n}
		}
	}
	return busiest, nil
}
