package deliver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	dialLimit   = 10 * time.Second // of a connection, with the handshake of TLS
	idleLimit   = 90 * time.Second
	maxHeader   = 16 << 10 // bytes of response headers
	connections = 4        // at a time, per subscription and target
)

// forbidden returns networks that no target may be in unless the operator names them: those that embed another address
// (which is not checked), and the metadata addresses of clouds, which give a machine its secrets. Loopback, link-local
// and multicast addresses are forbidden too.
func forbidden() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range []string{"0.0.0.0/8", "255.255.255.255/32", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16",
		"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128"} {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}

// permits reports whether a target may have an address.
func (t Target) permits(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(address) }
	if len(t.Addresses) > 0 {
		return slices.ContainsFunc(t.Addresses, within)
	}
	return address.IsValid() && !address.IsLoopback() && !address.IsLinkLocalUnicast() && !address.IsMulticast() &&
		!address.IsUnspecified() && !slices.ContainsFunc(forbidden(), within)
}

// dialer connects to permitted addresses of a target only. It checks the address of each connection itself, so a name that
// resolves differently later leads nowhere else (DNS rebinding).
func (t Target) dialer(resolver *net.Resolver) *net.Dialer {
	return &net.Dialer{Timeout: dialLimit, Resolver: resolver,
		ControlContext: func(_ context.Context, _, hostPort string, _ syscall.RawConn) error {
			address, err := netip.ParseAddrPort(hostPort)
			if err == nil && !t.permits(address.Addr()) {
				err = fmt.Errorf("%s is not permitted", address.Addr())
			}
			return err
		}}
}

// transport returns a transport for one target: HTTP/1.1, without a proxy from the environment.
func (t Target) transport(resolver *net.Resolver) *http.Transport {
	dialer := t.dialer(resolver)
	return &http.Transport{
		DialContext: dialer.DialContext,
		DialTLSContext: func(ctx context.Context, network, hostPort string) (net.Conn, error) {
			config, err := t.tls(hostPort)
			if err != nil {
				return nil, err
			}
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, hostPort)
		},
		MaxIdleConns: connections, MaxIdleConnsPerHost: connections, MaxConnsPerHost: 2 * connections,
		IdleConnTimeout: idleLimit, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
	}
}

// tls returns the configuration of one connection.
func (t Target) tls(hostPort string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	pool, err := web.Authorities(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: pool}, nil
}
