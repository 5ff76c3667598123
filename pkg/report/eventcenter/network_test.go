package eventcenter_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log"
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

	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/certificate"
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

// issue makes a self-signed certificate.
func issue(t *testing.T, name string) certificate.Pair {
	t.Helper()
	return certificate.Issue(t, nil, x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
}

// write writes a file that a reporter reads, and returns its name.
func write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(dir, name)
	must(t, os.WriteFile(name, data, 0o600))
	return name
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
func serve(t *testing.T, c http.Handler, config *tls.Config, p certificate.Pair) *tlsServer {
	t.Helper()
	server := &tlsServer{Server: httptest.NewUnstartedServer(c)}
	server.Config.ErrorLog = log.New(server, "", 0)
	config.Certificates, config.ClientAuth = []tls.Certificate{p.TLS()}, tls.RequestClientCert
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// The certificate is verified for the configured name; token and client certificate are those of the files; all of them
// are read again after a replacement.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	own, stranger, kubelet := issue(t, "center.prod"), issue(t, "center.prod"), issue(t, "system:node:node-1")
	c := newCenter()
	var seen []string
	var rotated atomic.Bool
	c.Answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
		token, name := request.Header.Get("Authorization"), "nobody"
		if certs := request.TLS.PeerCertificates; len(certs) > 0 {
			name = certs[0].Subject.CommonName
		}
		seen = append(seen, token+" "+name)
		refused := token == "Bearer old" && rotated.Load()
		if refused {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return refused
	})
	evil := newCenter()
	first, impostor := serve(t, c, &tls.Config{}, own), serve(t, evil, &tls.Config{}, stranger)
	pair := write(t, dir, "pair", slices.Concat(kubelet.Cert, kubelet.Key))
	config := realConfig(reporttest.NewStore(), impostor.URL, first.URL)
	config.Settings.CAFile, config.Settings.ServerName = write(t, dir, "ca", own.Cert), "center.prod"
	config.Settings.TokenFile = write(t, dir, "token", []byte("old\n"))
	config.Settings.ClientCertFile, config.Settings.ClientKeyFile = pair, pair
	r := eventcenter.New(config)
	runReal(t, r)
	w := reporttest.NewWorld()
	eventually(t, "the first is not reached", func() bool { return len(c.received()) > 1 })
	if r.Stats().Endpoint != first.URL {
		t.Errorf("in use: %s", r.Stats().Endpoint)
	}
	write(t, dir, "token", nil) // half of a replacement
	before := c.Asked()
	for i := range 3 {
		r.Update(w.Run("a", nil, "Empty"+string(rune('A'+i))))
		eventually(t, "no request", func() bool { return c.Asked() > before+i })
	}
	write(t, dir, "token", []byte("new\n"))
	rotated.Store(true)
	for i := range 5 {
		r.Update(w.Run("a", nil, "Token"+string(rune('A'+i))))
		time.Sleep(20 * time.Millisecond)
	}
	eventually(t, "the new token is not used", func() bool { return slices.Contains(c.lines(), "TokenE") })
	c.Lock()
	defer c.Unlock()
	if last := seen[len(seen)-1]; last != "Bearer new system:node:node-1" || slices.Contains(seen, " system:node:node-1") {
		t.Errorf("last came %q, of %q", last, seen) // the empty token is not used
	}
	if evil.Asked() > 0 {
		t.Error("the impostor was sent something")
	}
}

// A replaced certificate authority is read again after the connection failed.
func TestNewAuthority(t *testing.T) {
	before, after := issue(t, "center.prod"), issue(t, "center.prod")
	c, dir := newCenter(), t.TempDir()
	server := serve(t, c, &tls.Config{}, after)
	config := realConfig(reporttest.NewStore(), server.URL)
	config.Settings.CAFile, config.Settings.ServerName = write(t, dir, "ca", before.Cert), "center.prod"
	runReal(t, eventcenter.New(config))
	eventually(t, "no handshake was broken off", func() bool { return server.refused.Load() > 0 })
	if c.Asked() > 0 {
		t.Fatal("a certificate of another authority is believed")
	}
	write(t, dir, "ca", after.Cert)
	eventually(t, "the new authority is not read", func() bool { return len(c.received()) > 0 })
}

// The reporter sends no event after a redirect, to a proxy of the environment, or to a server with old TLS versions
// only.
func TestNobodyElseIsAsked(t *testing.T) {
	other := newCenter()
	thief := httptest.NewServer(other)
	defer thief.Close()
	t.Setenv("HTTP_PROXY", thief.URL)
	t.Setenv("HTTPS_PROXY", thief.URL)
	c := newCenter()
	c.Answers(func(w http.ResponseWriter, request *http.Request, _ []cloudevents.Event) bool {
		http.Redirect(w, request, thief.URL, http.StatusPermanentRedirect)
		return true
	})
	p := issue(t, "center.prod")
	old := serve(t, other, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, p)
	server := httptest.NewServer(c)
	defer server.Close()
	config := realConfig(reporttest.NewStore(), old.URL, server.URL, "https://127.0.0.1:9/")
	config.Settings.CAFile, config.Settings.ServerName = write(t, t.TempDir(), "ca", p.Cert), "center.prod"
	runReal(t, eventcenter.New(config))
	eventually(t, "no request", func() bool { return c.Asked() > 1 })
	if n := other.Asked(); n > 0 {
		t.Errorf("%d requests to others", n)
	}
}

// The connections of the caller's transport stay open.
func TestTransportOfTheCaller(t *testing.T) {
	c := newCenter()
	server := httptest.NewServer(c)
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	config := realConfig(reporttest.NewStore(), server.URL)
	config.Transport = transport
	done, cancel := runReal(t, eventcenter.New(config))
	eventually(t, "no request", func() bool { return c.Asked() > 0 })
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
	var sent atomic.Int64
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for _, err = conn.Write([]byte("HTTP/1.1 200 OK\r\n")); err == nil; {
			_, err = conn.Write([]byte("X-A: " + strings.Repeat("a", 8000) + "\r\n"))
			sent.Add(8000)
		}
	}))
	defer endless.Close()
	c := newCenter()
	server := httptest.NewServer(c)
	defer server.Close()
	r := eventcenter.New(realConfig(reporttest.NewStore(), endless.URL, server.URL))
	runReal(t, r)
	r.Update(reporttest.NewWorld().Run("a", nil, "One"))
	eventually(t, "the other endpoint is not used", func() bool { return slices.Contains(c.lines(), "One") })
	if n := sent.Load(); n > 64<<20 { // more than the kernel buffers
		t.Errorf("%d bytes of headers were read", n)
	}
}
