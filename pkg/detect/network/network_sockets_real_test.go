package network

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
)

// fiveMinutes lets five minutes pass without a run of the check.
func (n *netNode) fiveMinutes() { n.later += 4 * time.Minute }

// calm lets the window of counters pass.
func (n *netNode) calm(c detect.Check) {
	n.t.Helper()
	n.fiveMinutes()
	n.fiveMinutes()
	n.expect(c)
}

// A program that does not read its datagrams.
func TestRealUDPReceiveBuffer(t *testing.T) {
	n, c := newNetNode(t), UDP()
	n.expect(c)
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	n.must(err)
	defer socket.Close()
	n.must(socket.SetReadBuffer(4096))
	sender, err := net.DialUDP("udp4", nil, socket.LocalAddr().(*net.UDPAddr))
	n.must(err)
	defer sender.Close()
	for range 1000 {
		_, err := sender.Write(make([]byte, 512))
		n.must(err)
	}
	n.fiveMinutes()
	n.expect(c, [3]string{"node/lab", "warning", "UDPReceiveBufferErrors"})
	n.calm(c)
}

// A program that listens and does not accept.
func TestRealListenOverflow(t *testing.T) {
	n, c := newNetNode(t), TCP()
	n.expect(c)
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	n.must(err)
	defer syscall.Close(listener)
	n.must(syscall.Bind(listener, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	n.must(syscall.Listen(listener, 1))
	at, err := syscall.Getsockname(listener)
	n.must(err)
	for range 200 {
		client, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC,
			0)
		n.must(err)
		defer syscall.Close(client)
		if err := syscall.Connect(client, at); err != nil && err != syscall.EINPROGRESS {
			t.Fatal(err)
		}
	}
	n.fiveMinutes()
	n.expect(c, [3]string{"node/lab", "warning", "ListenOverflows"})
	n.calm(c)
}

// A program that opens connections to one peer until no port is left.
func TestRealLocalPorts(t *testing.T) {
	n, c := newNetNode(t), Sockets()
	// of the test's own namespace
	n.must(os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40049"), 0))
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	n.must(err)
	defer listener.Close()
	n.expect(c)
	var connections []net.Conn
	for {
		conn, err := net.Dial("tcp4", listener.Addr().String())
		if err != nil {
			break // EADDRNOTAVAIL
		}
		defer conn.Close()
		connections = append(connections, conn)
	}
	if len(connections) < 45 {
		t.Fatalf("only %d connections", len(connections))
	}
	n.expect(c, [3]string{"node/lab", "warning", "LocalPortsExhausted"})
	for _, conn := range connections {
		n.must(conn.(*net.TCPConn).SetLinger(0)) // a reset leaves no socket in TIME_WAIT
		n.must(conn.Close())
	}
	n.fiveMinutes()
	n.fiveMinutes()
	n.expect(c)
}

// A namespace without traffic raises no finding.
func TestRealSoftnet(t *testing.T) {
	n, c := newNetNode(t), Softnet()
	n.expect(c)
	n.fiveMinutes()
	n.expect(c)
}
