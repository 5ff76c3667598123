package hosttest

import (
	"net"
	"testing"

	"google.golang.org/grpc"
)

// ServeGRPC runs a gRPC server on a socket until the returned function is called or the test ends.
func ServeGRPC(t testing.TB, socket string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener) }()
	stop = func() { server.Stop(); <-done }
	t.Cleanup(stop)
	return stop
}
