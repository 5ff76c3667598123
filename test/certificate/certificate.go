// Package certificate issues certificates to tests.
package certificate

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"
	"time"
)

// Pair is a certificate with its key.
type Pair struct {
	Certificate *x509.Certificate
	Private     *ecdsa.PrivateKey

	Cert, Key []byte // the same as PEM
}

// Issue returns a certificate that an authority has signed. Without an authority it signs itself, and can sign others.
// It is valid for an hour, if the template has no end.
func Issue(t testing.TB, authority *Pair, template x509.Certificate) Pair {
	t.Helper()
	key, failed := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template.SerialNumber = cmp.Or(template.SerialNumber, big.NewInt(time.Now().UnixNano()))
	template.NotBefore = time.Now().Add(-2 * time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if authority == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		authority = &Pair{Certificate: &template, Private: key}
	}
	parent, signer := authority.Certificate, authority.Private
	der, unsigned := x509.CreateCertificate(rand.Reader, &template, parent, &key.PublicKey, signer)
	certificate, unread := x509.ParseCertificate(der)
	private, unencoded := x509.MarshalECPrivateKey(key)
	if err := errors.Join(failed, unsigned, unread, unencoded); err != nil {
		t.Fatal(err)
	}
	return Pair{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})}
}

// TLS returns the pair for a server or client.
func (p Pair) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{p.Certificate.Raw}, PrivateKey: p.Private}
}
