package main

import (
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/certificate"
)

// writeCertificate writes a certificate for loopback with a serial number, and its key.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	pair := certificate.Issue(t, nil, x509.Certificate{SerialNumber: big.NewInt(serial),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)}})
	for name, text := range map[string][]byte{"cert": pair.Cert, "key": pair.Key} {
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
	expect(t, exitFine, "", "nodes", "--dir", dir, "--ca", cert)
	expect(t, exitCouldNotTell, "certificate", "nodes", "--dir", dir)
	must(t, os.WriteFile(cert, []byte("half"), 0o600))
	if n := serial(t, address); n != 1 {
		t.Errorf("half written: serial %d", n)
	}
	writeCertificate(t, files, 2)
	if n := serial(t, address); n != 2 {
		t.Errorf("renewed: serial %d", n)
	}
	expect(t, exitCouldNotTell, "", "serve", "--dir", t.TempDir(), "--tls-cert", cert)
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
		file string
		args []string
	}{
		{key, []string{"--tls-cert", filepath.Join(dir, "cert"), "--tls-key", key}},
		{secret, []string{"--oidc", put("oidc", "issuer: http://localhost\nclientID: x\naddress: http://localhost\n"+
			"groups: [x]\nclientSecretFile: "+secret+"\n")}},
		{secret, []string{"--clusters", put("clusters", "clusters: [{name: x, kubeconfig: "+secret+"}]\n")}},
		{secret, []string{"--replicas", put("replicas", replicasFile(0, secret, "", peers))}},
		{key, []string{"--replicas", put("replicas-tls", replicasFile(0, put("other", "sixteen characters"), dir, peers))}},
		{secret, []string{"--replicas", put("nats", "journal: jetstream\nname: a\nnats: {url: \"tls://localhost\", "+
			"credentialsFile: "+secret+"}\n")}},
	} {
		for _, mode := range []os.FileMode{0o644, 0o660} {
			must(t, os.Chmod(test.file, mode))
			args := append([]string{"serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir()}, test.args...)
			expect(t, exitCouldNotTell, "others may use it", args...)
		}
		must(t, os.Chmod(test.file, 0o640))
	}
}
