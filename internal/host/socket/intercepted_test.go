package socket_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// TestIntercepted: a server of this process, and the ways in which others get its requests, with the kernel's own
// translation of addresses.
func TestIntercepted(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	iptables := need.Program(t, "iptables")
	listen := func(address string) net.Listener {
		t.Helper()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	const address, elsewhere = "127.0.0.1:10248", "127.0.0.1:8080"
	h := &host.Host{}
	expect := func(name string, pid int, patience time.Duration, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if got := socket.Intercepted(ctx, h, pid, address); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	rule := func(words string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), iptables, strings.Fields(words)...).CombinedOutput(); err != nil {
			t.Fatalf("iptables %s: %v\n%s", words, err, out)
		}
	}
	self, long := os.Getpid(), time.Minute
	expect("no server", self, long, "")
	own := listen(address)
	expect("it accepts nothing, and does not answer", self, long, "")
	sleep := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	expect("another process has the port", sleep.Process.Pid, long, fmt.Sprintf("another process than %d", sleep.Process.Pid))

	rule("-t nat -A OUTPUT -p tcp -d 127.0.0.1 --dport 10248 -j REDIRECT --to-ports 8080")
	expect("translated to a port without a server", self, long, "hostPort")
	pod := listen(elsewhere)
	expect("translated to a silent server", self, long, "hostPort")
	go func() {
		for {
			c, err := pod.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.0 500 no\r\n\r\n")
			_ = c.Close()
		}
	}()
	expect("translated to a server that answers", self, long, "hostPort")
	_ = own.Close()
	expect("translated, and its own server has ended", self, long, "hostPort")
	listen(address)
	rule("-A INPUT -p tcp --dport 8080 -j DROP")
	expect("translated, and dropped there", self, 300*time.Millisecond, "hostPort")
}
