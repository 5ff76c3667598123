package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// TestConnectionsAreBounded: a thousand connections held open cost the agent few descriptors, and a real request is
// answered at once. This holds for every server of the agent.
func TestConnectionsAreBounded(t *testing.T) {
	tcp, dir := loopback.Free(t), t.TempDir()
	socket := filepath.Join(dir, "s")
	for _, test := range []struct {
		name, network, address, path string
		code                         int
		run                          func(context.Context) error
	}{
		{"loopback", "tcp", tcp, "/readyz", http.StatusServiceUnavailable, func(ctx context.Context) error {
			return ServeLoopback(ctx, tcp, Probe(func() error { return errors.New("not ready") }))
		}},
		{"socket", "unix", socket, "/status", http.StatusOK,
			SocketServer{Path: socket, Status: func() (Status, error) { return Status{}, nil }}.Run},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- test.run(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			dial := func() (net.Conn, error) {
				for began := time.Now(); ; {
					conn, err := net.Dial(test.network, test.address)
					if err == nil || time.Since(began) > time.Minute {
						return conn, err // retries: the server has just been started
					}
				}
			}
			client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() },
			}}
			ask := func() {
				t.Helper()
				began := time.Now()
				response, err := client.Get("http://agent" + test.path)
				if err != nil {
					t.Fatalf("after %s: %v", time.Since(began), err)
				}
				defer response.Body.Close()
				if _, err := io.Copy(io.Discard, response.Body); err != nil {
					t.Error(err)
				}
				if response.StatusCode != test.code || !response.Close {
					t.Errorf("status %d, connection is kept: %v", response.StatusCode, !response.Close)
				}
			}
			ask()
			before := descriptors(t)
			const held = 1000
			for i := range held {
				conn, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				switch i % 3 {
				case 1:
					_, _ = io.WriteString(conn, "GET "+test.path+" HTTP/1.1\r\nHost: a\r\n") // incomplete
				case 2:
					_, _ = io.WriteString(conn, "G")
				}
			}
			for range 3 {
				ask()
			}
			if agents := descriptors(t) - before - held; agents > maxConnections+8 {
				t.Errorf("%d descriptors for %d connections that are held open", agents, held)
			}
		})
	}
}

// TestSlowRequestIsGivenUp: a connection without a request is closed.
func TestSlowRequestIsGivenUp(t *testing.T) {
	address := loopback.Free(t)
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, http.NotFoundHandler(), nil) }()
	t.Cleanup(func() { cancel(); <-done })
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}

func TestExpendable(t *testing.T) {
	conn := func(user uint32, asking bool) *limitedConn {
		return &limitedConn{User: user, Asking: asking}
	}
	for _, test := range []struct {
		name string
		open []*limitedConn
		want int
	}{
		{"the oldest", []*limitedConn{conn(7, true), conn(7, true)}, 0},
		{"whose request has not come", []*limitedConn{conn(7, false), conn(7, true), conn(7, true)}, 1},
		{"of who has most, though all have asked", []*limitedConn{conn(9, true), conn(7, false), conn(7, false)},
			1},
		{"root's last, though it has most", []*limitedConn{conn(0, true), conn(0, true), conn(7, false)}, 2},
		{"root's where there are no others", []*limitedConn{conn(0, false), conn(0, true)}, 1},
		{"who is not known is not root", []*limitedConn{conn(0, true), conn(unknownUser, false)}, 1},
	} {
		if got := expendable(test.open); got != test.open[test.want] {
			t.Errorf("%s: another one is closed", test.name)
		}
	}
}

// TestPeerUser: the agent gets the user of the other end from the kernel.
func TestPeerUser(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := peerUser(&host.Host{})(conn)
	need.Has(t, got != unknownUser, "tcp_diag")
	if diff := cmp.Diff(uint32(os.Getuid()), got); diff != "" {
		t.Error(diff)
	}
}
