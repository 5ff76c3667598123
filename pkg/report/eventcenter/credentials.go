package eventcenter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// fileWait is how long a request waits for the files if there are no older credentials.
	fileWait = time.Second
	// maxHeader bounds the headers of an answer, in bytes.
	maxHeader = 16 << 10
	// idleConnection is longer than the usual interval of agent.alive: a handshake costs more than a connection.
	idleConnection = 3 * time.Minute
)

// session is one set of credentials and the connections made with them.
type session struct {
	client http.RoundTripper
	own    *http.Transport // the client, unless it is the caller's
	token  string
	digest [32]byte // of the files
}

// credentials keeps the newest session. Each request has the files read again for the next one: they may be on a hung
// disk, so a goroutine reads them, and only the first request waits for it.
type credentials struct {
	settings Settings
	read     func(name string) ([]byte, error)
	fixed    http.RoundTripper

	mu      sync.Mutex // guards all below
	current *session
	err     error         // of the last read
	reading chan struct{} // closed after the read in progress; nil if there is none
}

// get returns the session to use.
func (c *credentials) get(ctx context.Context) (*session, error) {
	c.mu.Lock()
	current, reading := c.current, c.reading
	if reading == nil {
		reading = make(chan struct{})
		c.reading = reading
		go c.load(current, reading)
	}
	c.mu.Unlock()
	if current != nil {
		return current, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fileWait)
	defer cancel()
	select {
	case <-reading:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil, fmt.Errorf("credentials: %w", cmp.Or(c.err, errNoAnswer))
	}
	return c.current, nil
}

var errNoAnswer = fmt.Errorf("no answer of the disk within %s", fileWait)

func (c *credentials) load(old *session, done chan struct{}) {
	next, err := c.open(old)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && next != old {
		old.close()
		c.current = next
	}
	c.err, c.reading = err, nil
	close(done)
}

// open reads the files. It returns the old session if they are unchanged.
func (c *credentials) open(old *session) (*session, error) {
	sum := sha256.New()
	files := map[string][]byte{}
	for _, name := range []string{c.settings.CAFile, c.settings.TokenFile, c.settings.ClientCertFile,
		c.settings.ClientKeyFile} {
		if name == "" {
			continue
		}
		data, err := c.read(name)
		if err != nil {
			return nil, err
		}
		files[name] = data
		fmt.Fprintf(sum, "%d %s\n%s", len(data), name, data)
	}
	s := &session{client: c.fixed, token: strings.TrimSpace(string(files[c.settings.TokenFile]))}
	if c.settings.TokenFile != "" && s.token == "" {
		return nil, fmt.Errorf("%s: empty", c.settings.TokenFile)
	}
	sum.Sum(s.digest[:0])
	if old != nil && old.digest == s.digest {
		return old, nil
	}
	if s.client == nil {
		config, err := c.tls(files)
		if err != nil {
			return nil, err
		}
		s.own = newTransport(config)
		s.client = s.own
	}
	return s, nil
}

func (c *credentials) tls(files map[string][]byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.settings.ServerName}
	if c.settings.CAFile != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(files[c.settings.CAFile]) {
			return nil, fmt.Errorf("%s: no certificate in it", c.settings.CAFile)
		}
	}
	if c.settings.ClientCertFile != "" {
		pair, err := tls.X509KeyPair(files[c.settings.ClientCertFile], files[c.settings.ClientKeyFile])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.settings.ClientCertFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// newTransport returns a transport for this reporter alone: without a proxy from the environment, and with one idle
// connection.
func newTransport(config *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns: 1, MaxConnsPerHost: 2, IdleConnTimeout: idleConnection, MaxResponseHeaderBytes: maxHeader,
		DisableCompression: true, WriteBufferSize: 4 << 10, ReadBufferSize: 4 << 10,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1: one request at a time
	}
}

func (s *session) close() {
	if s != nil && s.own != nil {
		s.own.CloseIdleConnections()
	}
}

// close ends the connections.
func (c *credentials) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.close()
}
