package netlink_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func TestRoute(t *testing.T) {
	hosttest.PrivateNetwork(t)
	route := host.NewNetwork().Route
	four, six := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	for _, to := range []netip.Addr{four, six} {
		if err := route(to); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("route to %s while loopback is down: %v", to, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, to := range []netip.Addr{four, six} {
		if err := route(to); err != nil {
			t.Errorf("route to %s while loopback is up: %v", to, err)
		}
	}
}

func TestBusiestPorts(t *testing.T) {
	hosttest.PrivateNetwork(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	peer := netip.MustParseAddrPort(listener.Addr().String())
	for range 7 {
		conn, err := net.Dial("tcp4", peer.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	use, err := host.NewNetwork().BusiestPorts(t.Context(), 1024, 65535)
	if err != nil {
		t.Fatal(err)
	}
	if use.Peer != peer || use.Count != 7 || use.Local != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("%+v, want 7 ports to %s", use, peer)
	}
	if use, err := host.NewNetwork().BusiestPorts(t.Context(), 1, 2); err != nil || use.Count != 0 {
		t.Errorf("ports that are not in use: %+v, %v", use, err)
	}
}
