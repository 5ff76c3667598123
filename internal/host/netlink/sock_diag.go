package netlink

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// sock_diag(7) by hand: github.com/vishvananda/netlink v1.3.1 has it, and does not fit. Its SocketGet dumps by ports alone
// and returns the first of two sockets, so the user that it names may be another connection's; SocketDiagTCPInfo returns
// all sockets of the node at once. Here the kernel finds the one socket, or filters by state and port.

// The parts of include/uapi/linux/inet_diag.h and tcp.h in use. Ports and addresses are in network byte order.
const (
	diagRequestSize = 56 // struct inet_diag_req_v2
	diagMessageSize = 72 // struct inet_diag_msg
	diagUID         = 64 // idiag_uid in it
	diagInfo        = 2  // the attribute with struct tcp_info
	diagLastData    = 52 // tcpi_last_data_recv in it, milliseconds
)

// TCPQuery is struct inet_diag_req_v2: a query for TCP sockets of a family.
type TCPQuery struct {
	Family uint8
	States uint32 // a bit set
	// One queries the socket with exactly these two. Each uses only their ports; 0 means any.
	Local, Peer netip.AddrPort
	Info        bool // also return struct tcp_info of each
}

// Len implements nl.NetlinkRequestData.
func (q TCPQuery) Len() int { return diagRequestSize }

// Serialize implements nl.NetlinkRequestData.
func (q TCPQuery) Serialize() []byte {
	data := make([]byte, diagRequestSize)
	data[0], data[1] = q.Family, unix.IPPROTO_TCP
	if q.Info {
		data[2] = 1 << (diagInfo - 1)
	}
	binary.NativeEndian.PutUint32(data[4:], q.States)
	binary.BigEndian.PutUint16(data[8:], q.Local.Port())
	binary.BigEndian.PutUint16(data[10:], q.Peer.Port())
	copy(data[12:28], q.Local.Addr().AsSlice())
	copy(data[28:44], q.Peer.Addr().AsSlice())
	binary.NativeEndian.PutUint64(data[diagRequestSize-8:], ^uint64(0)) // any cookie
	return data
}

// Each dumps the sockets and calls each for one after another, until it returns false.
func (q TCPQuery) Each(each func(TCPSocket) bool) error { return q.send(unix.NLM_F_DUMP, each) }

// One returns the one socket with these addresses.
func (q TCPQuery) One() (socket TCPSocket, err error) {
	found := false
	err = q.send(0, func(s TCPSocket) bool {
		socket, found = s, true
		return true
	})
	if err == nil && !found {
		err = errors.New("malformed answer")
	}
	return socket, err
}

func (q TCPQuery) send(flags int, each func(TCPSocket) bool) error {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, flags)
	request.AddData(q)
	return request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		socket, ok := parseTCPSocket(message)
		return !ok || each(socket)
	})
}

// TCPSocket is one TCP socket.
type TCPSocket struct {
	Local, Peer netip.AddrPort
	UID         uint32
	LastData    time.Duration // since data last arrived; only if HasInfo
	HasInfo     bool
}

// parseTCPSocket reads a struct inet_diag_msg with its attributes. ok is false for a malformed one.
func parseTCPSocket(message []byte) (s TCPSocket, ok bool) {
	if len(message) < diagMessageSize {
		return s, false
	}
	address := func(data []byte) netip.Addr {
		if message[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(data))
		}
		return netip.AddrFrom16([16]byte(data)).Unmap()
	}
	s.Local = netip.AddrPortFrom(address(message[8:]), binary.BigEndian.Uint16(message[4:]))
	s.Peer = netip.AddrPortFrom(address(message[24:]), binary.BigEndian.Uint16(message[6:]))
	s.UID = binary.NativeEndian.Uint32(message[diagUID:])
	attributes, err := Attributes(message[diagMessageSize:])
	if err != nil {
		return s, true // the socket itself is valid
	}
	if info := attributes.Get(diagInfo); len(info) >= diagLastData+4 {
		s.LastData = time.Duration(binary.NativeEndian.Uint32(info[diagLastData:])) * time.Millisecond
		s.HasInfo = true
	}
	return s, true
}
