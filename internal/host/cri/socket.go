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

// maxMessage bounds one gRPC answer. It is what kubelet itself accepts from a runtime
// (k8s.io/cri-client, maxMsgSize).
const maxMessage = 16 << 20

// socketConn is a gRPC connection to a daemon on this machine, made when it is first needed. It differs from a plain
// grpc.ClientConn in what happens after a failure: the next call dials at once, so that neither a daemon that has come
// back is called dead for the length of a back-off, nor is an old failure reported as a new one. No call waits for a
// daemon to appear: a missing or dead one is an error at once, and one that accepts but does not answer (SIGSTOP) is an
// error at the deadline of ctx. Nothing is asked of a server that is not root's, whatever the path of its socket.
type socketConn struct {
	path string

	mu      sync.Mutex // guards what follows, and the fields of every dialed
	current *dialed    // nil until needed and after a failure
	closed  bool
}

// dialed is one connection and what became of it. Calls share it: one of them throws it away, and the others must learn
// why from here, since gRPC reports only that it was closed.
type dialed struct {
	*grpc.ClientConn
	dialErr error // why the latest dial failed; gRPC flattens it to text
	failure error // the failed call for which it was thrown away; nil while it is in use
}

// Invoke implements grpc.ClientConnInterface. Errors name socket and method, keep the gRPC status, and wrap the error
// of ctx or of the dial (fs.ErrNotExist, syscall.ECONNREFUSED) where that was the reason.
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

// NewStream implements grpc.ClientConnInterface; CRI is not asked for streams.
func (s *socketConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream,
	error) {
	return nil, status.Error(codes.Unimplemented, "streams are not used")
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
	// The name is never resolved: the dialer knows the path, which need not be fit for a URL.
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.dial(ctx, next) }),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second},
			// A stopped daemon accepts and never greets. That is for the deadline of ctx to end: gRPC's own limit would
			// make it look like one that cannot be reached.
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

// boundStream bounds a stream, as which containerd's client lists containers, like one message.
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
	if of.failure == nil { // else it was thrown away, and that ended the dial
		of.dialErr = err
	}
	return conn, err
}

// DialRoots connects to a Unix socket on which a process of root's listens. Any other is an error that wraps
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

// classify throws away a connection that failed, and returns the failure and what it wraps. Of a connection that
// another call has thrown away, that is the failure of the other call, and not that the connection is closed, which is
// our own doing. The failure is stale where it is about a connection made earlier and not about the daemon now: it
// broke since (the daemon was started again), or was thrown away. Then the call is worth one retry; all calls made here
// only read.
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
		conn.Close() // its only error is that it is closed already
		return err, conn.dialErr, conn.dialErr == nil
	}
	return err, nil, false
}

// socketError is a failed call of a local daemon.
type socketError struct {
	socket, method string
	err            error // with its gRPC status
	cause          error // may be nil
}

// Error is one line for people: where nobody could be dialed, the kernel's answer, which is the same for each method.
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
