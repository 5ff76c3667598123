package netlink

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The parts of include/uapi/linux/inet_diag.h and tcp.h that are used. Ports and addresses are in network byte order.
const (
	DiagRequestSize = 56 // struct inet_diag_req_v2
	DiagMessageSize = 72 // struct inet_diag_msg
	diagInfo        = 2  // the attribute with struct tcp_info
	diagLastData    = 52 // tcpi_last_data_recv in it, milliseconds
)

// DiagRequest is struct inet_diag_req_v2: it asks for the TCP sockets of a family that are in one of a set of states.
type DiagRequest struct {
	Family     uint8
	States     uint32
	RemotePort uint16 // 0: any
	Info       bool   // also struct tcp_info of each
}

func (r DiagRequest) Len() int { return DiagRequestSize }

func (r DiagRequest) Serialize() []byte {
	data := make([]byte, DiagRequestSize)
	data[0], data[1] = r.Family, unix.IPPROTO_TCP
	if r.Info {
		data[2] = 1 << (diagInfo - 1)
	}
	binary.NativeEndian.PutUint32(data[4:], r.States)
	binary.BigEndian.PutUint16(data[10:], r.RemotePort)
	binary.NativeEndian.PutUint64(data[DiagRequestSize-8:], ^uint64(0)) // any cookie
	return data
}

// Dump hands each socket to the function until it returns false.
func (r DiagRequest) Dump(each func(DiagSocket) bool) error {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(r)
	return request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		socket, ok := parseDiag(message)
		return !ok || each(socket)
	})
}

// DiagSocket is one TCP socket.
type DiagSocket struct {
	local, Peer netip.AddrPort
	LastData    time.Duration // since data last came; only where hasInfo
	HasInfo     bool
}

// parseDiag reads a struct inet_diag_msg with its attributes. A malformed one is not ok.
func parseDiag(message []byte) (s DiagSocket, ok bool) {
	if len(message) < DiagMessageSize {
		return s, false
	}
	address := func(data []byte) netip.Addr {
		if message[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(data))
		}
		return netip.AddrFrom16([16]byte(data)).Unmap()
	}
	s.local = netip.AddrPortFrom(address(message[8:]), binary.BigEndian.Uint16(message[4:]))
	s.Peer = netip.AddrPortFrom(address(message[24:]), binary.BigEndian.Uint16(message[6:]))
	attributes, err := NetlinkAttributes(message[DiagMessageSize:])
	if err != nil {
		return s, true // the socket itself is told
	}
	for _, a := range attributes {
		if a.Kind == diagInfo && len(a.Value) >= diagLastData+4 {
			s.LastData = time.Duration(binary.NativeEndian.Uint32(a.Value[diagLastData:])) * time.Millisecond
			s.HasInfo = true
		}
	}
	return s, true
}
