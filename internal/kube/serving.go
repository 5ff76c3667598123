package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// servingCertificate returns the certificate that kubelet's API shows. It sends no data beyond the handshake itself, so
// it does not matter who listens there.
func (k *kubeletClient) servingCertificate(ctx context.Context) (*x509.Certificate, error) {
	target, err := url.Parse(k.paths.KubeletAPI)
	if err != nil || target.Scheme != "https" {
		return nil, fmt.Errorf("kubelet's serving certificate: %w", hosterr.ErrNotConfigured)
	}
	ctx, cancel := withTimeout(ctx, k.config.Timeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: target.Hostname()}} //nolint:gosec // it is read, not trusted
	conn, err := dialer.DialContext(ctx, "tcp", target.Host)
	if err != nil {
		if hasNone(err) {
			err = fmt.Errorf("%w: %w", hosterr.ErrNoCertificate, err)
		}
		return nil, fmt.Errorf("kubelet's serving certificate: %w", err)
	}
	defer conn.Close()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return nil, fmt.Errorf("kubelet's serving certificate: %w", hosterr.ErrNoCertificate)
	}
	return chain[0], nil
}

// hasNone recognizes the answer of a kubelet whose serving certificate the cluster has not signed yet
// (serverTLSBootstrap): alert 80, internal_error, because its GetCertificate fails (k8s.io/client-go/util/certificate
// and crypto/tls).
func hasNone(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" && strings.HasSuffix(alert.Err.Error(), "tls: internal error")
}
