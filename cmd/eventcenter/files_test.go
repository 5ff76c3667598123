package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/test/certificate"
	"github.com/nodeagent/nodeagent/test/loopback"
)

// When a disk becomes read-only, after an error such as a bad block, writes fail with the reason, reads work, and a
// metric counts it. A center restarted after the repair has every acknowledged event.
func TestReadOnlyDisk(t *testing.T) {
	disk := hosttest.NewLoopFS(t, "ext4")
	mount := filepath.Join(t.TempDir(), "disk")
	disk.Mount(mount, "errors=remount-ro")
	dir := filepath.Join(mount, "center")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	disk.TriggerError()
	var refused error
	await(t, func() error {
		refused = p.post(raised("node-1", 2))
		return unless(refused != nil, "an event is taken on a read-only disk: %s", p.log)
	})
	must(t, contains(refused.Error(), "503", "the journal cannot be written"))
	for path, want := range map[string]string{"/healthz": "alive", "/v1/faults": "node-2", "/v1/events": `"newest":"2"`,
		"/v1/nodes/prod/node-1": "node-1", "/metrics": "eventcenter_append_failures_total "} {
		must(t, p.has(path, http.StatusOK, want))
	}
	if p.has("/metrics", http.StatusOK, "eventcenter_append_failures_total 0\n") == nil {
		t.Error("no failure is counted")
	}
	p.stop(syscall.SIGTERM)
	disk.Unmount(mount)
	disk.Check()
	disk.Mount(mount, "errors=remount-ro")
	p = start(t, dir)
	must(t, p.post(raised("node-1", 2)))
	must(t, p.has("/v1/events", http.StatusOK, `"newest":"3"`))
	p.stop(syscall.SIGTERM)
}

// With a damaged control store the center still takes and returns events. It delivers none, and reports that; the
// damaged file stays unchanged.
func TestDamagedControl(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"no database": func([]byte) []byte { return bytes.Repeat([]byte("x"), 8192) },
		"cut off":     func(data []byte) []byte { return data[:len(data)/2-100] },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			start(t, dir).stop(syscall.SIGTERM)
			file := filepath.Join(dir, "control.db")
			data := read(t, file)
			damaged := damage(data)
			must(t, os.WriteFile(file, damaged, 0o600))
			p := start(t, dir)
			must(t, p.post(raised("node-1", 1)))
			must(t, p.has("/readyz", http.StatusOK, "the center delivers no events"))
			must(t, p.has("/v1/events", http.StatusOK, `"newest":"1"`))
			must(t, contains(p.log.String(), "open control store failed"))
			p.stop(syscall.SIGTERM)
			unchanged(t, file, damaged)
		})
	}
}

func unchanged(t *testing.T, file string, before []byte) {
	t.Helper()
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, before) {
		t.Errorf("%s is changed: %v", file, err)
	}
}

// Events of the next version's agents are stored unchanged, and the parts that this version knows are shown. Files of
// the next version are refused by name and not changed: the next version, or this one with its own files, can continue.
func TestNextVersion(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	for sequence, kind := range []string{"fault.raised.v1", "fault.raised.v2"} {
		text := string(mustEncode(raised("n", uint64(sequence)+1)))
		text = strings.ReplaceAll(text, "fault.raised.v1", kind)
		text = strings.Replace(text, `"data":{`, `"region":"eu","data":{"weather":{"sky":"clear"},`, 1)
		must(t, p.send("/v1/events", "application/cloudevents+json", []byte(text)))
	}
	shows := func() {
		t.Helper()
		must(t, p.has("/v1/events", http.StatusOK, `"region":"eu"`, "fault.raised.v2", `"sky":"clear"`))
		must(t, p.has("/v1/faults", http.StatusOK, `"total":1`))
	}
	shows()
	p.stop(syscall.SIGTERM)
	model := filepath.Join(dir, "model.json")
	text, err := os.ReadFile(model)
	must(t, errors.Join(err, contains(string(text), `"version":1`)))
	must(t, os.WriteFile(model, bytes.Replace(text, []byte(`"version":1`), []byte(`"version":2`), 1), 0o600))
	p = start(t, dir) // it is derived: created again
	shows()
	p.stop(syscall.SIGTERM)

	day, err := filepath.Glob(filepath.Join(dir, "journal", "*.db"))
	if err != nil || len(day) != 1 {
		t.Fatal(day, err)
	}
	for _, file := range []struct {
		name, is string
		now      int
	}{{day[0], "reads format 3:", 3}, {filepath.Join(dir, "control.db"), "knows 1", 1}} {
		format(t, file.name, file.now+1)
		before := read(t, file.name)
		reason := fmt.Sprintf("its format is %d, this program %s", file.now+1, file.is)
		expect(t, exitCouldNotTell, reason, "serve", "--dir", dir, "--listen", "127.0.0.1:0")
		unchanged(t, file.name, before)
		format(t, file.name, file.now)
	}
	p = start(t, dir)
	shows()
	must(t, p.post(raised("n", 3)))
}

// format changes the format version in a SQLite file.
func format(t *testing.T, name string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	must(t, err)
	_, err = db.ExecContext(t.Context(), "UPDATE meta SET version = ?", version)
	must(t, errors.Join(err, db.Close()))
}

// writeCertificate writes a certificate for loopback with a serial number, and its key.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	pair := certificate.Issue(t, nil, x509.Certificate{SerialNumber: big.NewInt(serial),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2), net.ParseIP(loopback.Address())}})
	for name, text := range map[string][]byte{"cert": pair.Cert, "key": pair.Key} {
		must(t, os.Chtimes(put(t, dir, name, string(text)), time.Time{}, time.Unix(serial*1000, 0)))
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
	put(t, files, "cert", "half")
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
	secret, key := put(t, dir, "secret", "sixteen characters"), filepath.Join(dir, "key")
	other := put(t, dir, "other", "sixteen characters")
	peers := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	for _, test := range []struct {
		file string
		args []string
	}{
		{key, []string{"--tls-cert", filepath.Join(dir, "cert"), "--tls-key", key}},
		{secret, []string{"--oidc", put(t, dir, "oidc", "issuer: http://localhost\nclientID: x\naddress: http://localhost\n"+
			"groups: [x]\nclientSecretFile: "+secret+"\n")}},
		{secret, []string{"--clusters", put(t, dir, "clusters", "clusters: [{name: x, kubeconfig: "+secret+"}]\n")}},
		{secret, []string{"--replicas", put(t, dir, "replicas", replicasFile(0, secret, "", peers))}},
		{key, []string{"--replicas", put(t, dir, "replicas-tls", replicasFile(0, other, dir, peers))}},
		{secret, []string{"--replicas", put(t, dir, "nats", "journal: jetstream\nname: a\nnats: {url: \"tls://localhost\", "+
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
