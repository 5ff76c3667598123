package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// TCPUser returns whose the socket is that is bound to local and connected to peer, in this network namespace: of a
// connection over the loopback, the user at the other end. It asks the kernel for this one socket (sock_diag(7)).
// ErrNotConfigured says that the kernel would have to load a module to answer.
func TCPUser(h *host.Host, local, peer netip.AddrPort) (uid uint32, err error) {
	if !h.HasModule("tcp_diag") {
		return 0, fmt.Errorf("tcp_diag is not loaded: %w", hosterr.ErrNotConfigured)
	}
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	request.AddData(diagOne{local, peer})
	found := false
	err = request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		if len(message) >= netlink.DiagMessageSize {
			uid, found = binary.NativeEndian.Uint32(message[diagUID:]), true
		}
		return true
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("user of the socket %s to %s: %w", local, peer, err)
	case !found:
		return 0, fmt.Errorf("user of the socket %s to %s: malformed answer", local, peer)
	}
	return uid, nil
}

const diagUID = 64 // idiag_uid in struct inet_diag_msg

// diagOne is struct inet_diag_req_v2 that asks for one socket.
type diagOne struct{ local, peer netip.AddrPort }

func (d diagOne) Len() int { return netlink.DiagRequestSize }

func (d diagOne) Serialize() []byte {
	local, peer := d.local.Addr().Unmap(), d.peer.Addr().Unmap()
	family := uint8(unix.AF_INET6)
	if local.Is4() {
		family = unix.AF_INET
	}
	data := netlink.DiagRequest{Family: family, States: ^uint32(0)}.Serialize()
	binary.BigEndian.PutUint16(data[8:], d.local.Port())
	binary.BigEndian.PutUint16(data[10:], d.peer.Port())
	copy(data[12:28], local.AsSlice())
	copy(data[28:44], peer.AsSlice())
	return data
}
