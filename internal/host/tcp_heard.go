package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
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
	if !h.hasTCPDiag() {
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

// hasTCPDiag reports whether asking loads no module: it is loaded, built in, or the kernel knows no modules.
func (h *Host) hasTCPDiag() bool {
	if _, err := h.Files.List("/sys/module/tcp_diag"); err == nil {
		return true
	}
	modules, err := h.Files.Read("/proc/modules")
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || strings.Contains(string(modules), "\ntcp_diag ") {
		return err == nil
	}
	release, err := h.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil || strings.ContainsRune(release, '/') {
		return false
	}
	builtin, err := h.Files.Read("/lib/modules/" + release + "/modules.builtin")
	return err == nil && strings.Contains(string(builtin), "/tcp_diag.ko")
}

// The parts of linux/inet_diag.h and linux/tcp.h that are used.
const (
	tcpEstablished     = 1 << 1 // in the set of states
	inetDiagInfo       = 2      // the attribute with struct tcp_info
	inetDiagMessage    = 72     // struct inet_diag_msg
	inetDiagRequest    = 56     // struct inet_diag_req_v2
	tcpInfoLastData    = 52     // tcpi_last_data_recv, milliseconds
	inetDiagRemote     = 4 + 4 + 16
	inetDiagRemotePort = 4 + 2
)

// diagRequest is struct inet_diag_req_v2 for the established connections to one remote port.
type diagRequest struct {
	family uint8
	port   uint16
}

func (r diagRequest) Len() int { return inetDiagRequest }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, inetDiagRequest)
	b[0], b[1], b[2] = r.family, unix.IPPROTO_TCP, 1<<(inetDiagInfo-1)
	binary.NativeEndian.PutUint32(b[4:], tcpEstablished)
	binary.BigEndian.PutUint16(b[8+2:], r.port)
	binary.NativeEndian.PutUint64(b[inetDiagRequest-8:], ^uint64(0)) // any cookie
	return b
}

func tcpHeard(family uint8, remotes []netip.AddrPort) (ago time.Duration, ok bool, err error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(diagRequest{family, remotes[0].Port()})
	err = request.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		remote, last, known := parseDiag(message)
		if known && isOneOf(remotes, remote) && (!ok || last < ago) {
			ago, ok = last, true
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

// parseDiag reads the peer of a connection and when it was last heard from a struct inet_diag_msg with its attributes.
func parseDiag(message []byte) (remote netip.AddrPort, last time.Duration, ok bool) {
	if len(message) < inetDiagMessage {
		return remote, 0, false
	}
	size := 4
	if message[0] == unix.AF_INET6 {
		size = 16
	}
	address, _ := netip.AddrFromSlice(message[inetDiagRemote : inetDiagRemote+size])
	remote = netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(message[inetDiagRemotePort:]))
	attributes, err := nl.ParseRouteAttr(message[inetDiagMessage:])
	if err != nil {
		return remote, 0, false
	}
	for _, a := range attributes {
		if a.Attr.Type == inetDiagInfo && len(a.Value) >= tcpInfoLastData+4 {
			return remote, time.Duration(binary.NativeEndian.Uint32(a.Value[tcpInfoLastData:])) * time.Millisecond, true
		}
	}
	return remote, 0, false
}
