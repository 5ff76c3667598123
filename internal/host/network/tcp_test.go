package network

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestTCPUser: the user of the other end of a connection is found; for a missing connection there is none.
func TestTCPUser(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Log(err) // no IPv6 here
			continue
		}
		defer listener.Close()
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		h := &host.Host{}
		need.Has(t, h.HasModule("tcp_diag"), "tcp_diag")
		local, peer := netip.MustParseAddrPort(client.LocalAddr().String()),
			netip.MustParseAddrPort(client.RemoteAddr().String())
		if uid, err := TCPUser(h, local, peer); err != nil || int(uid) != os.Getuid() {
			t.Errorf("%s: user %d, %v", address, uid, err)
		}
		if uid, err := TCPUser(h, netip.AddrPortFrom(local.Addr(), 1), peer); err == nil {
			t.Errorf("%s: a socket that does not exist is of user %d", address, uid)
		}
	}
}
