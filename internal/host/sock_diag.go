package host

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The parts of include/uapi/linux/inet_diag.h and tcp.h that are used. Ports and addresses are in network byte order.
const (
	diagRequestSize = 56 // struct inet_diag_req_v2
	diagMessageSize = 72 // struct inet_diag_msg
	diagInfo        = 2  // the attribute with struct tcp_info
	diagLastData    = 52 // tcpi_last_data_recv in it, milliseconds
)

// diagRequest is struct inet_diag_req_v2: it asks for the TCP sockets of a family that are in one of a set of states.
type diagRequest struct {
	family     uint8
	states     uint32
	remotePort uint16 // 0: any
	info       bool   // also struct tcp_info of each
}

func (r diagRequest) Len() int { return diagRequestSize }

func (r diagRequest) Serialize() []byte {
	data := make([]byte, diagRequestSize)
	data[0], data[1] = r.family, unix.IPPROTO_TCP
	if r.info {
		data[2] = 1 << (diagInfo - 1)
	}
	binary.NativeEndian.PutUint32(data[4:], r.states)
	binary.BigEndian.PutUint16(data[10:], r.remotePort)
	binary.NativeEndian.PutUint64(data[diagRequestSize-8:], ^uint64(0)) // any cookie
	return data
}

// dump hands each socket to the function until it returns false.
func (r diagRequest) dump(each func(diagSocket) bool) error {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(r)
	return request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		socket, ok := parseDiag(message)
		return !ok || each(socket)
	})
}

// diagSocket is one TCP socket.
type diagSocket struct {
	local, peer netip.AddrPort
	lastData    time.Duration // since data last came; only where hasInfo
	hasInfo     bool
}

// parseDiag reads a struct inet_diag_msg with its attributes. A malformed one is not ok.
func parseDiag(message []byte) (s diagSocket, ok bool) {
	if len(message) < diagMessageSize {
		return s, false
	}
	address := func(data []byte) netip.Addr {
		if message[0] == unix.AF_INET {
			return netip.AddrFrom4([4]byte(data))
		}
		return netip.AddrFrom16([16]byte(data)).Unmap()
	}
	s.local = netip.AddrPortFrom(address(message[8:]), binary.BigEndian.Uint16(message[4:]))
	s.peer = netip.AddrPortFrom(address(message[24:]), binary.BigEndian.Uint16(message[6:]))
	attributes, err := netlinkAttributes(message[diagMessageSize:])
	if err != nil {
		return s, true // the socket itself is told
	}
	for _, a := range attributes {
		if a.kind == diagInfo && len(a.value) >= diagLastData+4 {
			s.lastData = time.Duration(binary.NativeEndian.Uint32(a.value[diagLastData:])) * time.Millisecond
			s.hasInfo = true
		}
	}
	return s, true
}
