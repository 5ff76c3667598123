package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// maxMessage bounds one gRPC answer. It is kubelet's own limit for a runtime (k8s.io/cri-client, maxMsgSize).
const maxMessage = 16 << 20

// socketConn is a gRPC connection to a daemon on this machine, made on first use. It differs from a plain
// grpc.ClientConn after a failure: the next call dials at once. So a revived daemon is not reported as dead during a
// back-off, and an old failure is not reported as a new one. No call waits for a daemon to appear: a missing or dead
// one is an error at once, and one that accepts but does not answer (SIGSTOP) is an error at the deadline of ctx. It
// sends no request to a server of a user other than root, whatever the path of its socket.
type socketConn struct {
	path string

	mu      sync.Mutex // guards the fields below, and the fields of every dialed
	current *dialed    // nil until needed and after a failure
	closed  bool
}

// dialed is one connection and its result. Calls share it: one of them discards it, and the others must learn the
// reason from here, because gRPC reports only that it was closed.
type dialed struct {
	*grpc.ClientConn
	dialErr error // why the latest dial failed; gRPC flattens it to text
	failure error // the failed call that discarded it; nil while in use
}

// Invoke implements grpc.ClientConnInterface. Errors name socket and method, keep the gRPC status, and wrap the error
// of ctx or of the dial (fs.ErrNotExist, syscall.ECONNREFUSED) if that was the reason.
func (s *socketConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.call(ctx, method, func(conn *grpc.ClientConn) error {
		return conn.Invoke(ctx, method, args, reply, opts...)
	})
}

func (s *socketConn) call(ctx context.Context, method string, invoke func(*grpc.ClientConn) error) error {
	for attempt := 0; ; attempt++ {
		conn, err := s.open()
		if err != nil {
			return &socketError{s.path, method, err, nil}
		}
		if err = invoke(conn.ClientConn); err == nil {
			return nil
		}
		err, cause, stale := s.classify(ctx, conn, err)
		if !stale || attempt > 0 || ctx.Err() != nil {
			return &socketError{s.path, method, err, cause}
		}
	}
}

// NewStream implements grpc.ClientConnInterface. A stream that ends later has gRPC's own errors.
func (s *socketConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (stream grpc.ClientStream, err error) {
	err = s.call(ctx, method, func(conn *grpc.ClientConn) (err error) {
		stream, err = conn.NewStream(ctx, desc, method, opts...)
		return err
	})
	return stream, err
}

// Close ends the connection; calls in flight fail.
func (s *socketConn) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.current == nil {
		return nil
	}
	err := s.current.Close()
	s.current = nil
	return err
}

func (s *socketConn) open() (*dialed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	if s.current != nil {
		return s.current, nil
	}
	next := &dialed{}
	// The name is never resolved: the dialer knows the path, which need not be valid in a URL.
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.dial(ctx, next) }),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second},
			// A stopped daemon accepts and never greets. The deadline of ctx must end that: gRPC's own limit would make
			// it look like an unreachable daemon.
			MinConnectTimeout: time.Hour,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(false)),
		grpc.WithStreamInterceptor(boundStream),
	)
	if err != nil {
		return nil, err
	}
	next.ClientConn = conn
	s.current = next
	return next, nil
}

// boundStream bounds a stream, which containerd's client uses to list containers, like one message.
func boundStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, opts...)
	return &boundedStream{stream, maxMessage}, err
}

type boundedStream struct {
	grpc.ClientStream

	left int // bytes
}

// RecvMsg implements grpc.ClientStream.
func (s *boundedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if message, ok := m.(proto.Message); ok && err == nil {
		if s.left -= proto.Size(message); s.left < 0 {
			return status.Errorf(codes.ResourceExhausted, "more than %d bytes", maxMessage)
		}
	}
	return err
}

func (s *socketConn) dial(ctx context.Context, of *dialed) (net.Conn, error) {
	conn, err := DialRoots(ctx, s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.failure == nil { // otherwise discarding it ended the dial
		of.dialErr = err
	}
	return conn, err
}

// DialRoots connects to a Unix socket on which a process of root listens. Any other listener is an error that wraps
// ErrNotRoots.
func DialRoots(ctx context.Context, path string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if _, err := discover.RootsPeer(conn, path); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// classify discards a failed connection, and returns the failure and the error that it wraps. If another call has
// discarded the connection, that is the failure of that call, and not that the connection is closed, which the agent
// did itself. The failure is stale if it concerns an earlier connection and not the daemon now: that connection broke
// since (the daemon was restarted), or was discarded. Then the call is worth one retry; all calls made here only read.
func (s *socketConn) classify(ctx context.Context, conn *dialed, err error) (failure, cause error, stale bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return err, context.DeadlineExceeded, false
	case codes.Canceled:
		switch {
		case ctx.Err() != nil:
			return err, ctx.Err(), false
		case conn.failure != nil:
			return conn.failure, conn.dialErr, true
		}
		return err, nil, conn.GetState() == connectivity.Shutdown
	case codes.Unavailable:
		if conn.failure != nil {
			return conn.failure, conn.dialErr, true
		}
		conn.failure = err
		if s.current == conn {
			s.current = nil
		}
		conn.Close() // fails only if closed already
		return err, conn.dialErr, conn.dialErr == nil
	}
	return err, nil, false
}

// socketError is a failed call to a local daemon.
type socketError struct {
	socket, method string
	err            error // with its gRPC status
	cause          error // may be nil
}

// Error is one line of text: if the dial failed, the kernel's error, which is the same for each method.
func (e *socketError) Error() string {
	if dial := (*net.OpError)(nil); errors.As(e.cause, &dial) {
		return dial.Error()
	}
	if answer, ok := status.FromError(e.err); ok {
		return fmt.Sprintf("%s%s: %s: %s", e.socket, e.method, answer.Code(), answer.Message())
	}
	return fmt.Sprintf("%s%s: %v", e.socket, e.method, e.err)
}

func (e *socketError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.err}
	}
	return []error{e.err, e.cause}
}
