// Package netlink reads routes, TCP sockets and changes of links from the kernel, and names what it found in the plain
// types of a network layout. It changes nothing, and never waits for the RTNL lock.
//
// It sends and decodes through github.com/vishvananda/netlink, with two exceptions. Of TCP sockets the library's
// SocketDiagTCP dumps all in all states into memory: it filters neither states nor ports, while the agent asks for one
// remote port, or counts. Its SocketGet asks with a dump, for which the kernel compares the ports alone, and so may
// return the socket of another user at another loopback address. Of changes of links, LinkSubscribe has no socket
// filter: every veth and bridge port that a pod brings would wake the agent and be decoded; and it ends at the first
// overrun (ENOBUFS), with an error in which the errno is no longer found.
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

const (
	// portHoldingStates are those in which a socket keeps its port from others: established, closing and in TIME_WAIT.
	// Not those that listen or are closed.
	portHoldingStates = 0xfff &^ (1<<7 | 1<<10)
	// maxPeers bounds the pairs that are counted. Beyond, a pair that is not among the first 65,536 is not counted.
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
		// A table that changes while it is read is the normal case here; a few sockets more or less do not matter.
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
