package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// maxBody bounds one answer of the apiserver. A page of 500 pods is a few MB.
const maxBody = 64 << 20

// errTooLarge means that an answer exceeds its bound. Answers are never truncated.
var errTooLarge = errors.New("answer is too large")

// newTransport returns a new connection pool (it shares nothing with other clients in the process, and leaves no
// goroutine once its connections are closed) and the authenticating round tripper on top of it. client-go rereads
// client certificates and token files as they rotate.
func newTransport(config *rest.Config, adjust func(*tls.Config)) (*http.Transport, http.RoundTripper, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if adjust != nil {
		adjust(tlsConfig)
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	pool := &http.Transport{
		Proxy:               proxy,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		// Pings find a black-holed connection before calls are lost on it.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, bounded{pool, maxBody})
	if err != nil {
		return nil, nil, err
	}
	return pool, wrapped, nil
}

// bounded limits the size of answers.
type bounded struct {
	next http.RoundTripper
	max  int64 // bytes
}

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = &boundedBody{response.Body, b.max}
	if date, ok := request.Context().Value(dateKey{}).(*time.Time); ok {
		*date, _ = http.ParseTime(response.Header.Get("Date")) // zero if missing or malformed
	}
	return response, nil
}

// dateKey is the context key under which a request asks for the server's time: client-go exposes no headers.
type dateKey struct{}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// withTimeout ends ctx after limit at the latest.
func withTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		limit = DefaultTimeout
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s: %w", limit, context.DeadlineExceeded))
}
