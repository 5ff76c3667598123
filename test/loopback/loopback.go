// Package loopback has addresses that processes of a test listen on.
package loopback

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// Address is one of 127.64.0.0/10 that no other process of tests uses.
func Address() string {
	pid := os.Getpid() // at most 1<<22
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16, pid>>8&255, pid&255)
}

// Free returns an address and a port, as "address:port", that nobody listens on, and that nobody takes before the process
// that is told of it does: all of the machine share the ports of 127.0.0.1.
func Free(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
