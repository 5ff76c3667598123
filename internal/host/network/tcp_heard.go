package network

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// TCPHeard tells how long ago the kernel received data from one of the remote addresses on an established connection
// of this network namespace, whoever's it is; false when there is no such connection. It is asked of the kernel alone
// (sock_diag(7)), so that nothing is sent to anybody, and only for the one remote port. ErrNotConfigured says that
// the kernel would have to load a module to answer.
func TCPHeard(h *host.Host, remotes []netip.AddrPort) (ago time.Duration, ok bool, err error) {
	if len(remotes) == 0 {
		return 0, false, nil
	}
	if !h.HasModule("tcp_diag") {
		return 0, false, fmt.Errorf("tcp_diag is not loaded: %w", hosterr.ErrNotConfigured)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, heard, err := tcpHeard(family, remotes)
		if err != nil {
			return 0, false, fmt.Errorf("list connections: %w", err)
		}
		if heard && (!ok || found < ago) {
			ago, ok = found, true
		}
	}
	return ago, ok, nil
}

const tcpEstablished = 1 << 1 // in the set of states

func tcpHeard(family uint8, remotes []netip.AddrPort) (ago time.Duration, ok bool, err error) {
	request := netlink.DiagRequest{Family: family, States: tcpEstablished, RemotePort: remotes[0].Port(), Info: true}
	err = request.Dump(func(s netlink.DiagSocket) bool {
		if s.HasInfo && isOneOf(remotes, s.Peer) && (!ok || s.LastData < ago) {
			ago, ok = s.LastData, true
		}
		return true
	})
	return ago, ok, err
}

func isOneOf(remotes []netip.AddrPort, remote netip.AddrPort) bool {
	for _, r := range remotes {
		if r.Port() == remote.Port() && r.Addr().Unmap() == remote.Addr() {
			return true
		}
	}
	return false
}
