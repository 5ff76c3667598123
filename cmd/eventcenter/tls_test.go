package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = a.sign(template)
	return a
}

func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	must(a.t, err)
	cert, err := x509.ParseCertificate(der)
	must(a.t, err)
	return cert, key
}

// issue returns a client's certificate and key, PEM, in one text, as kubelet keeps them.
func (a *authority) issue(name, organization string, until time.Duration, usage ...x509.ExtKeyUsage) []byte {
	cert, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name,
		Organization: []string{organization}}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(until),
		ExtKeyUsage: usage})
	return append(pemOf("CERTIFICATE", cert.Raw), a.pem(key)...)
}

func (a *authority) pem(key *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	raw, err := x509.MarshalECPrivateKey(key)
	must(a.t, err)
	return pemOf("EC PRIVATE KEY", raw)
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeCertificate writes a certificate for loopback with a serial number, and its key.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	a := &authority{t: t}
	cert, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "center"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)}})
	for name, text := range map[string][]byte{"cert": pemOf("CERTIFICATE", cert.Raw), "key": a.pem(key)} {
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		must(t, os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Unix(serial*1000, 0)))
	}
}

func serial(t *testing.T, address string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it looks at what it gets
	must(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// The next connection uses a renewed certificate; a half written one is not used.
func TestTLS(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	writeCertificate(t, files, 1)
	cert, key := filepath.Join(files, "cert"), filepath.Join(files, "key")
	p := start(t, dir, "--tls-cert", cert, "--tls-key", key)
	address, ok := strings.CutPrefix(p.url, "https://")
	if !ok {
		t.Fatal(p.url)
	}
	if out, code := cli(t, "nodes", "--dir", dir, "--ca", cert); code != exitFine {
		t.Error(out)
	}
	if out, code := cli(t, "nodes", "--dir", dir); code != exitCouldNotTell || !strings.Contains(out, "certificate") {
		t.Errorf("a center that nobody vouches for is trusted: %s", out)
	}
	must(t, os.WriteFile(cert, []byte("half"), 0o600))
	if n := serial(t, address); n != 1 {
		t.Errorf("half written: serial %d", n)
	}
	writeCertificate(t, files, 2)
	if n := serial(t, address); n != 2 {
		t.Errorf("renewed: serial %d", n)
	}
	if out, code := cli(t, "serve", "--dir", t.TempDir(), "--tls-cert", cert); code != exitCouldNotTell {
		t.Errorf("without a key: %s", out)
	}
}

// A center refuses to start with a key, a token or credentials that other users may read.
func TestSecretModes(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	put := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	secret, key := put("secret", "sixteen characters"), filepath.Join(dir, "key")
	peers := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	for _, test := range []struct {
		name, file string
		args       []string
	}{
		{"TLS key", key, []string{"--tls-cert", filepath.Join(dir, "cert"), "--tls-key", key}},
		{"client secret", secret, []string{"--oidc", put("oidc", "issuer: http://localhost\nclientID: x\naddress: http://localhost\n"+
			"groups: [x]\nclientSecretFile: "+secret+"\n")}},
		{"kubeconfig", secret, []string{"--clusters", put("clusters", "clusters: [{name: x, kubeconfig: "+secret+"}]\n")}},
		{"replicas' secret", secret, []string{"--replicas", put("replicas", replicasFile(0, secret, "", peers))}},
		{"replicas' key", key, []string{"--replicas", put("replicas-tls", replicasFile(0, put("other", "sixteen characters"),
			dir, peers))}},
		{"credentials of NATS", secret, []string{"--replicas", put("nats", "journal: jetstream\nname: a\nnats: {url: \"tls://localhost\", "+
			"credentialsFile: "+secret+"}\n")}},
	} {
		for _, mode := range []os.FileMode{0o644, 0o660} {
			must(t, os.Chmod(test.file, mode))
			out, code := cli(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir()}, test.args...)...)
			if code != exitCouldNotTell || !strings.Contains(out, "others may use it") {
				t.Errorf("%s: mode %#o: %d %s", test.name, mode, code, out)
			}
		}
		must(t, os.Chmod(test.file, 0o640))
	}
}
