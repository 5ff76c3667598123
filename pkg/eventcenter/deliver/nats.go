package deliver

import (
	"bytes"
	"context"
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
	"github.com/nodeagent/nodeagent/pkg/eventcenter/secretfile"
)

// natsSubject is what events are published to: no wildcard, and nothing that the servers keep for themselves.
var natsSubject = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]*(\.[a-zA-Z0-9_-]+)*$`)

// toNATS reports whether an address is a subject of NATS: nats://HOST/SUBJECT, or tls://HOST/SUBJECT.
func toNATS(u *url.URL) bool { return u.Scheme == "nats" || u.Scheme == "tls" }

func subjectOf(u *url.URL) string { return strings.TrimPrefix(u.Path, "/") }

// natsClient has a subject of NATS take part as a webhook does: a request is a message, and is answered 204 when a stream
// of JetStream has it. Each message is one event in structured mode (CloudEvents' NATS protocol binding), with the headers
// of the signature. What comes twice within the stream's duplicate window is there once.
type natsClient struct {
	target  Target
	resolve Resolver

	mu   sync.Mutex // guards what follows
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
	case r.Method == http.MethodOptions: // whom its servers let publish may: there is nobody else to be asked
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
	// With the subject: a stream may have the same event of another subscription at another.
	_, err = js.PublishMsg(r.Context(), m, jetstream.WithMsgID(r.Header.Get("webhook-id")+"@"+subject))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		err = fmt.Errorf("subject %s: no stream of JetStream takes it, or it may not be published to", subject)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// connected returns the connection, and makes it where there is none yet. One that is lost is made again by itself.
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
			nats.ReconnectBufSize(-1),                             // what cannot be sent now is an error now
			nats.SkipHostLookup(), nats.IgnoreDiscoveredServers(), // dial alone says where to
			nats.SetCustomDialer(natsDialer{c})}
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

// CloseIdleConnections ends the connection: nothing is sent any more.
func (c *natsClient) CloseIdleConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// natsDialer connects to permitted addresses alone, also when a connection is made again.
type natsDialer struct{ *natsClient }

// Dial implements nats.CustomDialer.
func (d natsDialer) Dial(network, hostPort string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit) // of no request: see connected
	defer cancel()
	return d.target.dial(ctx, d.resolve, network, hostPort)
}
