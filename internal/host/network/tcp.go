package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// LastReceived returns how long ago the kernel received data from one of the remote addresses, which share one port, on
// an established connection of this network namespace, of any process; false if there is no such connection. It queries
// only the kernel (sock_diag(7)) and sends no packets. ErrNotConfigured means that the kernel would have to load a
// module to answer.
func LastReceived(h *host.Host, remotes []netip.AddrPort) (ago time.Duration, ok bool, err error) {
	if len(remotes) == 0 {
		return 0, false, nil
	}
	if err := canQueryTCP(h); err != nil {
		return 0, false, err
	}
	const established = 1 << 1 // in the set of states
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		query := netlink.TCPQuery{Family: family, States: established, Info: true,
			Peer: netip.AddrPortFrom(netip.Addr{}, remotes[0].Port())}
		err := query.Each(func(s netlink.TCPSocket) bool {
			peer := func(remote netip.AddrPort) bool { return unmapped(remote) == s.Peer }
			if s.HasInfo && slices.ContainsFunc(remotes, peer) && (!ok || s.LastData < ago) {
				ago, ok = s.LastData, true
			}
			return true
		})
		if err != nil {
			return 0, false, fmt.Errorf("list connections: %w", err)
		}
	}
	return ago, ok, nil
}

func canQueryTCP(h *host.Host) error {
	if !h.HasModule("tcp_diag") {
		return fmt.Errorf("tcp_diag is not loaded: %w", hosterr.ErrNotConfigured)
	}
	return nil
}

func unmapped(p netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()) }

// TCPUser returns the user of the socket bound to local and connected to peer, in this network namespace: for a
// connection over the loopback, the user at the other end. It queries the kernel for this one socket (sock_diag(7)).
// ErrNotConfigured means that the kernel would have to load a module to answer.
func TCPUser(h *host.Host, local, peer netip.AddrPort) (uid uint32, err error) {
	if err := canQueryTCP(h); err != nil {
		return 0, err
	}
	query := netlink.TCPQuery{Family: unix.AF_INET6, States: ^uint32(0), Local: unmapped(local), Peer: unmapped(peer)}
	if query.Local.Addr().Is4() {
		query.Family = unix.AF_INET
	}
	socket, err := query.One()
	if err != nil {
		return 0, fmt.Errorf("user of the socket %s to %s: %w", local, peer, err)
	}
	return socket.UID, nil
}
