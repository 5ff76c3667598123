package deliver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

// natsSubject matches subjects to publish to: without wildcards and without the names that NATS servers reserve.
var natsSubject = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]*(\.[a-zA-Z0-9_-]+)*$`)

// toNATS reports whether an address is a subject of NATS: nats://HOST/SUBJECT, or tls://HOST/SUBJECT.
func toNATS(u *url.URL) bool { return u.Scheme == "nats" || u.Scheme == "tls" }

func subjectOf(u *url.URL) string { return strings.TrimPrefix(u.Path, "/") }

// natsClient makes a NATS subject behave like a webhook: a request is a message, and is answered with 204 once a stream
// of JetStream has stored it. Each message is one event in structured mode (CloudEvents' NATS protocol binding), with
// the signature headers. The stream drops duplicates within its duplicate window.
type natsClient struct {
	target   Target
	resolver *net.Resolver

	mu   sync.Mutex // guards the fields below
	conn *nats.Conn // nil: none yet
}

// RoundTrip implements http.RoundTripper.
func (c *natsClient) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)),
		Request: r}
	js, err := c.connected()
	switch {
	case err != nil:
		return nil, err
	case r.Method == http.MethodOptions: // the server's permissions decide: no one else can be asked
		answer.Header.Set("WebHook-Allowed-Origin", "*")
		return answer, nil
	case r.Header.Get("Content-Type") != event.MediaType:
		answer.StatusCode = http.StatusUnsupportedMediaType
		return answer, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	subject := subjectOf(r.URL)
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{"content-type": {event.MediaType}}}
	for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		m.Header[name] = []string{r.Header.Get(name)}
	}
	// With the subject: a stream may hold the same event from another subscription under another subject.
	_, err = js.PublishMsg(r.Context(), m, jetstream.WithMsgID(r.Header.Get("webhook-id")+"@"+subject))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		err = fmt.Errorf("subject %s: no stream of JetStream takes it, or it may not be published to", subject)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// connected returns the connection, and opens it if needed. A lost connection is restored by the library.
func (c *natsClient) connected() (jetstream.JetStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		u, err := url.Parse(c.target.URL)
		if err != nil {
			return nil, err
		}
		o := []nats.Option{nats.Name("eventcenter"), nats.Timeout(dialLimit), nats.MaxReconnects(-1),
			nats.ReconnectWait(time.Second), nats.IgnoreAuthErrorAbort(),
			nats.ReconnectBufSize(-1),                             // an event that cannot be sent now fails now
			nats.SkipHostLookup(), nats.IgnoreDiscoveredServers(), // only the dialer chooses the address
			nats.SetCustomDialer(c.target.dialer(c.resolver))}
		if c.target.CredentialsFile != "" {
			if err := secretfile.Check(c.target.CredentialsFile); err != nil {
				return nil, fmt.Errorf("credentialsFile: %w", err)
			}
			o = append(o, nats.UserCredentials(c.target.CredentialsFile))
		}
		if c.target.CAFile != "" {
			o = append(o, nats.RootCAs(c.target.CAFile))
		}
		if c.conn, err = nats.Connect(u.Scheme+"://"+hostPort(u), o...); err != nil {
			c.conn = nil
			return nil, err
		}
	}
	return jetstream.New(c.conn)
}

// CloseIdleConnections closes the connection: no more events are sent.
func (c *natsClient) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
