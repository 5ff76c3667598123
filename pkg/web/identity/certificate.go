package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web"
)

// maxAuthorities limits a file of CA certificates, in bytes.
const maxAuthorities = 4 << 20

// byCertificate identifies a kubelet by its client certificate. The TLS handshake has proven that the sender has its
// key.
func (a *Authority) byCertificate(chain []*x509.Certificate) (web.Identity, error) {
	var found *cluster
	var reasons []string
	for _, c := range a.clusters {
		if c.ClientCAFile == "" {
			continue
		}
		if err := c.certified(chain, a.now()); err != nil {
			reasons = append(reasons, c.Name+": "+err.Error())
			continue
		}
		if found != nil {
			return web.Identity{}, refuse(http.StatusForbidden, "the client certificate is of an authority that clusters %s "+
				"and %s share: which it is of cannot be told", found.Name, c.Name)
		}
		found = c
	}
	if found == nil {
		return web.Identity{}, refuse(http.StatusUnauthorized, "no cluster vouches for the client certificate: %.600s",
			strings.Join(reasons, "; "))
	}
	leaf := chain[0]
	node, named := strings.CutPrefix(leaf.Subject.CommonName, "system:node:")
	if !named || node == "" || !slices.Contains(leaf.Subject.Organization, "system:nodes") {
		return web.Identity{}, refuse(http.StatusForbidden, "the client certificate is of %.200q (organizations %.200q): a "+
			"node's has the common name system:node:NAME and the organization system:nodes", leaf.Subject.CommonName,
			leaf.Subject.Organization)
	}
	unreviewed, err := found.exists(node, "")
	if err != nil {
		return web.Identity{}, err
	}
	return web.Identity{Name: leaf.Subject.CommonName, By: "certificate", Cluster: found.Name, Node: node,
		Unreviewed: unreviewed}, nil
}

// certified returns why a chain is not a client certificate of this cluster.
func (c *cluster) certified(chain []*x509.Certificate, now time.Time) error {
	roots, err := c.authorities.pool()
	if err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err
	}
	if !slices.Contains(chain[0].ExtKeyUsage, x509.ExtKeyUsageClientAuth) { // to Verify, none means any
		return errors.New("it is not for client authentication")
	}
	return nil
}

// authorities are the CA certificates in a file, which is read again when it changes.
type authorities struct {
	file string

	mu       sync.Mutex // guards the fields below
	modified time.Time
	size     int64
	pem      []byte
	roots    *x509.CertPool
}

// pool returns the present CA certificates. If the file cannot be read, the previous ones stay in use. It is nil if
// there is no file.
func (a *authorities) pool() (*x509.CertPool, error) {
	if a.file == "" {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.read(); err != nil && a.roots == nil {
		return nil, err
	}
	return a.roots, nil
}

// text returns the present CA certificates, PEM.
func (a *authorities) text() []byte {
	_, _ = a.pool() // errors are reported when a certificate is verified
	a.mu.Lock()
	defer a.mu.Unlock()
	return bytes.Clone(a.pem)
}

// read reads the file if it has changed. The lock must be held.
func (a *authorities) read() error {
	f, err := os.Open(a.file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if a.roots != nil && info.ModTime().Equal(a.modified) && info.Size() == a.size {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAuthorities+1))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if len(text) > maxAuthorities || !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s: no certificate in it, or over %d bytes", a.file, maxAuthorities)
	}
	a.roots, a.pem, a.modified, a.size = pool, text, info.ModTime(), info.Size()
	return nil
}
