package deliver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"
)

const (
	dialLimit   = 10 * time.Second
	idleLimit   = 90 * time.Second
	maxHeader   = 16 << 10 // bytes of response headers
	connections = 4        // at a time, per subscription and target
	maxCA       = 1 << 20  // bytes
)

// Resolver returns the addresses of a host.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func systemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

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

// dial connects to a permitted address of a target. It resolves and checks the address for each connection, and
// connects to that one, so a name that resolves differently later has no effect (DNS rebinding).
func (t Target) dial(ctx context.Context, resolve Resolver, network, hostPort string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	addresses := []netip.Addr{}
	if literal, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, literal)
	} else if addresses, err = resolve(ctx, host); err != nil {
		return nil, err
	}
	problems := []error{fmt.Errorf("%s: no address that is permitted", host)}
	for _, address := range addresses {
		if !t.permits(address) {
			problems = append(problems, fmt.Errorf("%s is not permitted", address))
			continue
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(address.String(), port))
		if err == nil {
			return conn, nil
		}
		problems = append(problems[:0], err)
	}
	return nil, errors.Join(problems...)
}

// transport returns a transport for one target: HTTP/1.1, without a proxy from the environment.
func (t Target) transport(resolve Resolver) *http.Transport {
	dial := func(ctx context.Context, network, hostPort string) (net.Conn, error) {
		return t.dial(ctx, resolve, network, hostPort)
	}
	return &http.Transport{
		DialContext: dial,
		DialTLSContext: func(ctx context.Context, network, hostPort string) (net.Conn, error) {
			config, err := t.tls(hostPort)
			if err != nil {
				return nil, err
			}
			conn, err := dial(ctx, network, hostPort)
			if err != nil {
				return nil, err
			}
			secured := tls.Client(conn, config)
			ctx, cancel := context.WithTimeout(ctx, dialLimit)
			defer cancel()
			if err := secured.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return secured, nil
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
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.CAFile == "" {
		return config, nil
	}
	pem, err := readFile(t.CAFile, maxCA)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile %s: no certificate in it", t.CAFile)
	}
	return config, nil
}

// readFile reads a file of at most this many bytes.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s: more than %d bytes", name, most)
	}
	return data, nil
}
