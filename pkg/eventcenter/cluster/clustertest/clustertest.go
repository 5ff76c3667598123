// Package clustertest provides replicas for tests, with networks between them that a test can cut.
package clustertest

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
)

// proxies is an address only for the proxies. Replicas tell each other the source address of a peer's connection, with
// its listening port: if that were the replicas' own address, they would connect directly, past the proxies.
const proxies = "127.0.0.2"

// listen is an address only for the replicas' listening ports. The port must stay free until the replica listens, also
// after a restart: on 127.0.0.1 the kernel may give it to any connection of the machine as its source.
const listen = "127.0.0.3"

// Network connects three replicas, each pair through a proxy.
type Network struct {
	Listen [3]string    // each replica's address
	Routes [3][3]string // replica i's address for replica j: a proxy; empty for i == j

	mu    sync.Mutex // guards the fields below
	cut   [3]bool
	conns [3][]net.Conn
}

// New returns a network on loopback for the duration of the test.
func New(t testing.TB) *Network {
	t.Helper()
	n := &Network{}
	for i := range n.Listen {
		n.Listen[i] = free(t)
	}
	for i := range n.Routes {
		for j := range n.Routes {
			if i != j {
				l, err := net.Listen("tcp", proxies+":0")
				if err != nil {
					t.Fatal(err)
				}
				n.Routes[i][j] = l.Addr().String()
				var running sync.WaitGroup
				running.Go(func() { n.serve(l, i, j) })
				t.Cleanup(func() { _ = l.Close(); n.Cut(i, true); n.Cut(j, true); running.Wait() })
			}
		}
	}
	return n
}

// One starts a replica without others for the duration of the test.
func One(t testing.TB) *cluster.Node {
	t.Helper()
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	return node
}

// Start starts replica i, with its files in a directory. It knows the others by these routes; none: by those of the
// network.
func (n *Network) Start(i int, dir string, log *slog.Logger, routes ...string) (*cluster.Node, error) {
	if routes == nil {
		routes = slices.DeleteFunc(slices.Clone(n.Routes[i][:]), func(route string) bool { return route == "" })
	}
	return cluster.Start(cluster.Config{Name: fmt.Sprint("replica-", i), Dir: dir, Listen: n.Listen[i], Routes: routes,
		Secret: "secret", Log: log})
}

// Watched returns a log, and a channel that is closed by the first line that matches a regular expression.
func Watched(pattern string) (log *slog.Logger, matched <-chan struct{}) {
	closed := make(chan struct{})
	lines := watched{regexp.MustCompile(pattern), sync.OnceFunc(func() { close(closed) })}
	return slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})), closed
}

type watched struct {
	pattern *regexp.Regexp
	match   func()
}

// Write implements io.Writer.
func (w watched) Write(line []byte) (int, error) {
	if w.pattern.Match(line) {
		w.match()
	}
	return len(line), nil
}

// free returns an unused address.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", listen+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (n *Network) serve(l net.Listener, i, j int) {
	var pairs sync.WaitGroup
	defer pairs.Wait()
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		pairs.Go(func() { n.forward(in, i, j) })
	}
}

func (n *Network) forward(in net.Conn, i, j int) {
	defer in.Close()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(proxies)}}
	out, err := from.Dial("tcp", n.Listen[j])
	if err != nil {
		return
	}
	defer out.Close()
	if !n.add(i, j, in, out) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
	both.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
	both.Wait()
}

func (n *Network) add(i, j int, conns ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[i], n.conns[j] = append(n.conns[i], conns...), append(n.conns[j], conns...)
	return !n.cut[i] && !n.cut[j]
}

// Cut separates a replica from the others, or reconnects it.
func (n *Network) Cut(i int, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[i] = cut
	if cut {
		for _, c := range n.conns[i] {
			_ = c.Close()
		}
		n.conns[i] = nil
	}
}
