package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Intercepted returns why requests to a TCP address of this node do not reach the process that should serve it; empty if
// that is not proven. Anyone who may create pods can take a port of the node: with a hostPort, since the translation of
// addresses comes before any socket, or with a pod on the node's network. Then neither an answer nor silence is that of
// the process. address is "IP:port" in the network namespace of the process; one connection is made to it.
//
// The kernel shows both ends of a connection within a network namespace:
//
//	127.0.0.1:41268 -> 127.0.0.1:10248    the agent's
//	127.0.0.1:10248 -> 127.0.0.1:41268    the other one, accepted or not: missing if the address is translated
func Intercepted(ctx context.Context, h *host.Host, pid int, address string) string {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	connection, dialErr := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if dialErr == nil {
		defer connection.Close()
	}
	all, err := OfTCP(h, pid)
	if err != nil {
		return ""
	}
	listening := slices.DeleteFunc(slices.Clone(all), func(s TCP) bool { return !s.Listens || s.Local.Port() != to.Port() })
	held, err := Held(h, pid)
	switch {
	case dialErr != nil && len(listening) == 0:
		return ""
	case err == nil && len(listening) > 0 && !slices.ContainsFunc(listening, func(s TCP) bool { return held[s.Inode] }):
		return fmt.Sprintf("another process than %d listens on %s", pid, address)
	}
	const translated = "requests to %s do not reach its server: look for a pod with this hostPort, or a rule of the packet filter"
	if dialErr == nil {
		from := netip.AddrPort{}
		if local, ok := connection.LocalAddr().(*net.TCPAddr); ok {
			from = local.AddrPort()
		}
		if slices.ContainsFunc(all, func(s TCP) bool {
			return !s.Listens && s.Local.Port() == to.Port() && s.Remote.Port() == from.Port()
		}) {
			return ""
		}
		return fmt.Sprintf(translated, address)
	}
	// a listening port refuses no connection, and ignores one only if its queue is full
	empty := !slices.ContainsFunc(listening, func(s TCP) bool { return s.Waiting > 0 })
	if errors.Is(dialErr, syscall.ECONNREFUSED) || empty && ctx.Err() != nil {
		return fmt.Sprintf(translated, address)
	}
	return ""
}

// Responds reports whether the program behind a socket answers: a connection alone is no proof, because the kernel
// accepts it for a hanging program. So Responds sends a request that most servers do not even understand, GET / of
// HTTP/1.0. Any byte, or a closed connection, is an answer. Network is tcp or unix. The error is the operation that the
// peer did not complete before the deadline of ctx.
func Responds(ctx context.Context, network, address string) error {
	connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err // contains the socket
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = io.WriteString(connection, "GET / HTTP/1.0\r\n\r\n")
	if err == nil {
		_, err = connection.Read(make([]byte, 1))
	}
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s accepts a connection and does not answer: %w", network, address, ctx.Err())
	}
	return fmt.Errorf("%s %s: %w", network, address, err)
}
