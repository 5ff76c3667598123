package event

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Mode is how events are put into requests (HTTP protocol binding of CloudEvents).
type Mode string

// The modes, each simpler than the one before. A receiver that answers 415 to one is sent the next.
const (
	Batch      Mode = "batch"      // many in a JSON array
	Structured Mode = "structured" // one as JSON
	Binary     Mode = "binary"     // one, its attributes as headers
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Batch, Structured, Binary} }

// Simpler returns the next mode; empty after the last.
func (m Mode) Simpler() Mode {
	if next := slices.Index(Modes(), m) + 1; next < len(Modes()) {
		return Modes()[next]
	}
	return ""
}

// Message is one request.
type Message struct {
	Header http.Header
	Body   []byte
}

// Message puts encoded events into one request. Only a batch holds more than one.
func (m Mode) Message(events ...[]byte) (Message, error) {
	switch m {
	case Structured:
		return Message{http.Header{"Content-Type": {MediaType}}, events[0]}, nil
	case Binary:
		header, body, err := inBinary(events[0])
		return Message{header, body}, err
	}
	body := slices.Concat([]byte("["), bytes.Join(events, []byte(",")), []byte("]"))
	return Message{http.Header{"Content-Type": {BatchMediaType}}, body}, nil
}

const (
	maxAnswer = 64 << 10 // bytes of a response body that are read
	maxReason = 300      // bytes of its text that are kept
)

// RefusedError is an answer with a status other than 2xx.
type RefusedError struct {
	Status     int
	RetryAfter time.Duration // at most an hour
	Rejected   []Rejected    // empty: the receiver names none
	Text       string        // of the body, one line
}

// Rejected is one event of a batch that the receiver will never accept.
type Rejected struct {
	Index  int    `json:"index"` // from 0; not verified
	Reason string `json:"reason"`
}

func (r *RefusedError) Error() string {
	text := strconv.Itoa(r.Status) + " " + http.StatusText(r.Status)
	if r.Status >= 300 && r.Status < 400 {
		text += " (redirects are not followed)"
	}
	if r.Text != "" {
		text += ": " + r.Text
	}
	return text
}

// Send sends a request and returns the headers of a 2xx answer. Unlike http.Client it follows no redirect and keeps no
// cookie. Any other answer is a RefusedError; its form for events is {"rejected":[{"index":0,"reason":"…"}]}.
func Send(transport http.RoundTripper, r *http.Request) (http.Header, error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return response.Header, nil // even without the rest of the body: the status means that the events are durable
	}
	if err != nil {
		body = nil
	}
	refused := &RefusedError{Status: response.StatusCode, RetryAfter: RetryAfter(response.Header, time.Now()),
		Text: Brief(string(body), maxReason)}
	var named struct{ Rejected []Rejected }
	if json.Unmarshal(body, &named) == nil {
		refused.Rejected = named.Rejected
	}
	return nil, refused
}
