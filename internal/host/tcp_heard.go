package host

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// TCPHeard tells how long ago the kernel received data from one of the remote addresses on an established connection of this
// network namespace, whoever's it is; false when there is no such connection. It is asked of the kernel alone (sock_diag(7)),
// so that nothing is sent to anybody, and only for the one remote port. ErrNotConfigured says that the kernel would have to
// load a module to answer.
func (h *Host) TCPHeard(remotes []netip.AddrPort) (ago time.Duration, ok bool, err error) {
	if len(remotes) == 0 {
		return 0, false, nil
	}
	if !h.hasModule("tcp_diag") {
		return 0, false, fmt.Errorf("tcp_diag is not loaded: %w", ErrNotConfigured)
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
	request := diagRequest{family: family, states: tcpEstablished, remotePort: remotes[0].Port(), info: true}
	err = request.dump(func(s diagSocket) bool {
		if s.hasInfo && isOneOf(remotes, s.peer) && (!ok || s.lastData < ago) {
			ago, ok = s.lastData, true
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
