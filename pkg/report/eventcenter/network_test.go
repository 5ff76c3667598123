package eventcenter_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// runReal runs a reporter until cancel or the end of the test.
func runReal(t *testing.T, r *eventcenter.Reporter) (done chan struct{}, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Log(err) // the disk is broken
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return done, cancel
}

// eventually waits for a real condition, without a tight limit for a busy machine.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 3600 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal(what)
}

// pair is a certificate with its key, PEM.
type pair struct{ cert, key []byte }

// issue makes a self-signed certificate.
func issue(t *testing.T, name string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})}
}

func (p pair) tls(t *testing.T) tls.Certificate {
	t.Helper()
	certificate, err := tls.X509KeyPair(p.cert, p.key)
	must(t, err)
	return certificate
}

// tlsServer counts its log lines: handshakes that its clients broke off.
type tlsServer struct {
	*httptest.Server
	refused atomic.Int64
}

func (s *tlsServer) Write(line []byte) (int, error) {
	s.refused.Add(1)
	return len(line), nil
}

// serve serves c with a certificate, and asks for one.
func serve(t *testing.T, c http.Handler, p pair) *tlsServer {
	t.Helper()
	server := &tlsServer{Server: httptest.NewUnstartedServer(c)}
	server.Config.ErrorLog = log.New(server, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{p.tls(t)}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// The certificate is verified for the configured name; token and client certificate are those of the files; all of them
// are read again after a replacement.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	own, stranger, kubelet := issue(t, "center.prod"), issue(t, "center.prod"), issue(t, "system:node:node-1")
	c := &center{}
	var seen []string
	var rotated atomic.Bool
	c.answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
		name := "nobody"
		if certs := request.TLS.PeerCertificates; len(certs) > 0 {
			name = certs[0].Subject.CommonName
		}
		seen = append(seen, request.Header.Get("Authorization")+" "+name)
		if request.Header.Get("Authorization") == "Bearer old" && rotated.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	})
	evil := &center{}
	first, impostor := serve(t, c, own), serve(t, evil, stranger)
	listener := impostor.Listener.Addr().String()
	config := realConfig(reporttest.NewStore(), "https://"+listener)
	config.Settings = eventcenter.Settings{Cluster: "prod", ServerName: "center.prod",
		Endpoints: []string{"https://" + listener, first.URL},
		CAFile:    write("ca", own.cert), TokenFile: write("token", []byte("old\n")),
		ClientCertFile: write("pair", slices.Concat(kubelet.cert, kubelet.key)), ClientKeyFile: filepath.Join(dir, "pair")}
	r := eventcenter.New(config)
	runReal(t, r)
	w := reporttest.NewWorld()
	eventually(t, "the first is not reached", func() bool { return len(c.received()) > 1 })
	if r.Stats().Endpoint != first.URL {
		t.Errorf("in use: %s", r.Stats().Endpoint)
	}
	write("token", nil) // half of a replacement
	before := c.asked()
	for i := range 3 {
		r.Update(w.Run("a", nil, "Empty"+string(rune('A'+i))))
		eventually(t, "no request", func() bool { return c.asked() > before+i })
	}
	write("token", []byte("new\n"))
	rotated.Store(true)
	for i := range 5 {
		r.Update(w.Run("a", nil, "Token"+string(rune('A'+i))))
		time.Sleep(20 * time.Millisecond)
	}
	eventually(t, "the new token is not used", func() bool {
		return slices.Contains(c.lines(), "TokenE")
	})
	c.mu.Lock()
	last, empty := seen[len(seen)-1], slices.Contains(seen, " system:node:node-1")
	c.mu.Unlock()
	if empty {
		t.Error("the empty token is used")
	}
	if last != "Bearer new system:node:node-1" {
		t.Errorf("last came %q", last)
	}
	if evil.asked() > 0 {
		t.Error("the impostor was sent something")
	}
}

// A replaced certificate authority is read again after the connection failed.
func TestNewAuthority(t *testing.T) {
	before, after := issue(t, "center.prod"), issue(t, "center.prod")
	c, ca := &center{}, filepath.Join(t.TempDir(), "ca")
	must(t, os.WriteFile(ca, before.cert, 0o600))
	server := serve(t, c, after)
	config := realConfig(reporttest.NewStore(), server.URL)
	config.Settings.CAFile, config.Settings.ServerName = ca, "center.prod"
	r := eventcenter.New(config)
	runReal(t, r)
	eventually(t, "no handshake was broken off", func() bool { return server.refused.Load() > 0 })
	if c.asked() > 0 {
		t.Fatal("a certificate of another authority is believed")
	}
	must(t, os.WriteFile(ca, after.cert, 0o600))
	eventually(t, "the new authority is not read", func() bool { return len(c.received()) > 0 })
}

// The reporter sends no event after a redirect, to a proxy of the environment, or to a server with old TLS versions
// only.
func TestNobodyElseIsAsked(t *testing.T) {
	other := &center{}
	thief := httptest.NewServer(other)
	defer thief.Close()
	t.Setenv("HTTP_PROXY", thief.URL)
	t.Setenv("HTTPS_PROXY", thief.URL)
	c := &center{}
	c.answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
		http.Redirect(w, request, thief.URL, http.StatusPermanentRedirect)
		return true
	})
	p := issue(t, "center.prod")
	old := httptest.NewUnstartedServer(other)
	old.TLS = &tls.Config{Certificates: []tls.Certificate{p.tls(t)}, MaxVersion: tls.VersionTLS11,
		MinVersion: tls.VersionTLS10}
	old.StartTLS()
	defer old.Close()
	server := httptest.NewServer(c)
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca")
	must(t, os.WriteFile(ca, p.cert, 0o600))
	config := realConfig(reporttest.NewStore(), "")
	config.Settings.CAFile, config.Settings.ServerName = ca, "center.prod"
	config.Settings.Endpoints = []string{old.URL, server.URL, "https://127.0.0.1:9/"}
	runReal(t, eventcenter.New(config))
	eventually(t, "no request", func() bool { return c.asked() > 1 })
	if n := other.asked(); n > 0 {
		t.Errorf("%d requests to others", n)
	}
}

// The connections of the caller's transport stay open.
func TestTransportOfTheCaller(t *testing.T) {
	c := &center{}
	server := httptest.NewServer(c)
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	config := realConfig(reporttest.NewStore(), server.URL)
	config.Transport = transport
	done, cancel := runReal(t, eventcenter.New(config))
	eventually(t, "no request", func() bool { return c.asked() > 0 })
	cancel()
	<-done
	reused := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
	must(t, err)
	response, err := transport.RoundTrip(request)
	must(t, err)
	if must(t, response.Body.Close()); !reused {
		t.Error("the reporter has closed the connection")
	}
}

// A server that never answers, or never ends its headers, only costs a request its timeout.
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	var sent atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\n")); err == nil; {
					_, err = conn.Write([]byte("X-A: " + strings.Repeat("a", 8000) + "\r\n"))
					sent.Add(8000)
				}
			}()
		}
	}()
	c := &center{}
	server := httptest.NewServer(c)
	defer server.Close()
	config := realConfig(reporttest.NewStore(), "")
	config.Settings.Endpoints = []string{"http://" + listener.Addr().String(), server.URL}
	r := eventcenter.New(config)
	runReal(t, r)
	r.Update(reporttest.NewWorld().Run("a", nil, "One"))
	eventually(t, "the other endpoint is not used", func() bool {
		return slices.Contains(c.lines(event.FaultRaised), "One")
	})
	if n := sent.Load(); n > 64<<20 { // more than the kernel buffers
		t.Errorf("%d bytes of headers were read", n)
	}
}
