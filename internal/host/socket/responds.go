package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

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
