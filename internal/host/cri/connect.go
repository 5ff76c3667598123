package cri

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// ConnectTCP makes a connection and closes it without sending data. The error is the peer's or the kernel's answer.
func ConnectTCP(ctx context.Context, peer netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", peer.String())
	if err != nil {
		return fmt.Errorf("connect to %s: %w", peer, err)
	}
	return conn.Close()
}

// LookupAddresses resolves a name as the programs of this machine do; an address resolves to itself.
func LookupAddresses(ctx context.Context, name string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{address}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}
