package eventcenter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// maxAnswer bounds how much of an answer is read, in bytes.
	maxAnswer = 64 << 10
	// aliveHeader is the interval at which a center wants agent.alive, in seconds.
	aliveHeader = "Nodeagent-Alive-Seconds"
)

// The bounds of aliveHeader.
const (
	minAlive     = 10 * time.Second
	maxAlive     = time.Hour
	defaultAlive = time.Minute
)

// refusal is an answer with a status other than 2xx.
type refusal struct {
	code       int
	retryAfter time.Duration
	rejected   []rejection
	text       string
}

// rejection names one event of a batch that will never be accepted.
type rejection struct {
	Index  int    `json:"index"`
	Reason string `json:"reason"`
}

func (r *refusal) Error() string {
	text := strconv.Itoa(r.code) + " " + http.StatusText(r.code)
	if r.text != "" {
		text += ": " + r.text
	}
	return text
}

// code returns the status code of a refusal; 0 if there was no answer.
func code(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.code
	}
	return 0
}

// message is one request.
type message struct {
	header http.Header
	body   []byte
}

// encode puts events into one request. Only a batch holds more than one.
func encode(mode Mode, bodies [][]byte) (message, error) {
	switch mode {
	case Structured:
		return message{http.Header{"Content-Type": {event.MediaType}}, bodies[0]}, nil
	case Binary:
		header, body, err := event.Binary(bodies[0])
		return message{header, body}, err
	}
	size := 1
	for _, b := range bodies {
		size += len(b) + 1
	}
	body := append(make([]byte, 0, size), '[')
	for i, b := range bodies {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, b...)
	}
	return message{http.Header{"Content-Type": {event.BatchMediaType}}, append(body, ']')}, nil
}

// post sends a request to the endpoint in use, or, if it is away, to the others in their order.
func (r *Reporter) post(ctx context.Context, m message) error {
	s, err := r.credentials.get(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for i := range r.config.Settings.Endpoints {
		at := i
		if preferred := r.endpoint; i == 0 {
			at = preferred
		} else if i <= preferred {
			at = i - 1
		}
		err := r.postTo(ctx, s, r.config.Settings.Endpoints[at], m)
		if err == nil || !away(err) {
			r.use(at)
			return err
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	r.use(0)
	r.credentials.doubt() // a CA or a certificate may have been replaced
	return errors.Join(problems...)
}

// away reports whether another endpoint may give a different answer.
func away(err error) bool {
	c := code(err)
	return c == 0 || c >= 500 || c == http.StatusNotFound || c == http.StatusRequestTimeout || c >= 300 && c < 400
}

func (r *Reporter) postTo(ctx context.Context, s *session, endpoint string, m message) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(m.body))
	if err != nil {
		return err
	}
	request.Header = m.header.Clone()
	request.Header.Set("User-Agent", "nodeagent/"+cmp.Or(r.config.Version, "unknown"))
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := s.client.RoundTrip(request) // unlike a client it follows no redirect and keeps no cookie
	if err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		r.adoptInterval(response.Header)
		return nil // even without the rest of the body: the status means that the events are durable
	}
	if err != nil {
		body = nil
	}
	return fmt.Errorf("%s: %w", endpoint, readRefusal(response, body, time.Now()))
}

// adoptInterval takes the interval of agent.alive from an answer.
func (r *Reporter) adoptInterval(header http.Header) {
	seconds, err := strconv.Atoi(header.Get(aliveHeader))
	if err == nil && seconds > 0 {
		r.alive = min(max(time.Duration(min(seconds, 1<<20))*time.Second, minAlive), maxAlive)
	}
}

// readRefusal reads an answer. Its form for events is {"rejected":[{"index":0,"reason":"…"}]}.
func readRefusal(response *http.Response, body []byte, now time.Time) *refusal {
	f := &refusal{code: response.StatusCode, text: report.Text(string(body), 200),
		retryAfter: event.RetryAfter(response.Header, now)}
	var named struct {
		Rejected []rejection `json:"rejected"`
	}
	if json.Unmarshal(body, &named) == nil {
		f.rejected = named.Rejected
	}
	return f
}
