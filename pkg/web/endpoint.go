package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// Endpoint is where a program listens: its flags --listen, --tls-cert and --tls-key.
type Endpoint struct {
	Address           string
	CertFile, KeyFile string
}

// Validate returns the error in the flags: without a certificate, only an address of loopback is allowed.
func (e Endpoint) Validate() error {
	if _, _, err := net.SplitHostPort(e.Address); err != nil {
		return fmt.Errorf("--listen %q: %w", e.Address, err)
	}
	switch {
	case (e.CertFile == "") != (e.KeyFile == ""):
		return errors.New("--tls-cert and --tls-key belong together")
	case !e.Loopback() && !e.Secured():
		return fmt.Errorf("--listen %s: any address but loopback needs --tls-cert and --tls-key", e.Address)
	}
	return nil
}

// Loopback reports whether only this machine can connect.
func (e Endpoint) Loopback() bool { return IsLocal(e.Address) }

// Secured reports whether connections use TLS.
func (e Endpoint) Secured() bool { return e.CertFile != "" && e.KeyFile != "" }

// Listen opens the listener, for so many connections in total and per network, and returns its address as a URL.
// handshake may add to the TLS configuration; nil: it stays as it is.
func (e Endpoint) Listen(total, perNetwork int64, handshake func(*tls.Config) *tls.Config) (net.Listener, string, error) {
	listener, err := net.Listen("tcp", e.Address)
	if err != nil {
		return nil, "", err
	}
	listener = share.Listener(listener, perNetwork, total)
	if !e.Secured() {
		return listener, "http://" + listener.Addr().String(), nil
	}
	certificate := &Certificate{CertFile: e.CertFile, KeyFile: e.KeyFile}
	if _, err := certificate.Get(nil); err != nil {
		return nil, "", errors.Join(err, listener.Close())
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.Get, NextProtos: []string{"h2", "http/1.1"}}
	if handshake != nil {
		config = handshake(config)
	}
	return tls.NewListener(listener, config), "https://" + listener.Addr().String(), nil
}

const (
	headLimit = 10 * time.Second // for a request's headers to arrive
	idleLimit = 2 * time.Minute  // of an idle connection
	headBytes = 32 << 10         // of request headers: a token has at most 16 KiB
)

// Serve answers requests until ctx ends, and then waits until open ones have ended, for a limited time.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, limit time.Duration, log *slog.Logger) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headBytes,
		ConnContext: share.Connection,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err := server.Shutdown(limited)
		if err != nil {
			err = server.Close()
		}
		ended <- err
	})
	err := server.Serve(listener)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-ended)
}
