package web

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

// Certificate is that of a server; it is read again when its file changes.
type Certificate struct {
	CertFile, KeyFile string

	mu       sync.Mutex // guards the fields below
	modified time.Time
	loaded   *tls.Certificate
}

// Get returns the present certificate. If it cannot be read, the previous one stays in use.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var newest time.Time
	for _, name := range []string{c.CertFile, c.KeyFile} {
		if info, err := os.Stat(name); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	if c.loaded != nil && newest.Equal(c.modified) {
		return c.loaded, nil
	}
	var loaded tls.Certificate
	err := secretfile.Check(c.KeyFile)
	if err == nil {
		loaded, err = tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	}
	if err != nil && c.loaded != nil {
		return c.loaded, nil //nolint:nilerr // half written: the next connection reads it again
	}
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", c.CertFile, err)
	}
	c.loaded, c.modified = &loaded, newest
	return c.loaded, nil
}

// Authorities returns the CA certificates in a file. Without a file it returns nil: those of the system.
func Authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}
