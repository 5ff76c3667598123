// Package eventtest has a receiver of CloudEvents that reads requests with the SDK, not with the code of this project.
package eventtest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// Answer answers a request. If it returns false, it has not: the receiver accepts the events.
type Answer func(w http.ResponseWriter, r *http.Request, events []cloudevents.Event) bool

// Status is the answer of a receiver that accepts nothing.
func Status(code int) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ []cloudevents.Event) bool {
		w.WriteHeader(code)
		return true
	}
}

// Receiver accepts events in any mode, unless it has an answer of the test.
type Receiver struct {
	// Take is given each accepted event. Its error is a problem.
	Take func(e cloudevents.Event) error
	// Killed means that the senders get killed: a partial request is no problem.
	Killed bool

	sync.Mutex // held while Take and the answer run; guards the fields below
	Requests   int
	Problems   []error
	answer     Answer
}

// Answers sets the answer; nil accepts everything.
func (c *Receiver) Answers(a Answer) {
	c.Lock()
	defer c.Unlock()
	c.answer = a
}

// Asked returns the number of requests.
func (c *Receiver) Asked() int {
	c.Lock()
	defer c.Unlock()
	return c.Requests
}

// ServeHTTP implements http.Handler.
func (c *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodOptions {
		w.Header().Set("WebHook-Allowed-Origin", "*")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil && c.Killed {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	events, unread := read(r)
	c.Lock()
	defer c.Unlock()
	c.Requests++
	if err = errors.Join(err, unread); err != nil {
		c.Problems = append(c.Problems, err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if c.answer != nil && c.answer(w, r, events) {
		return
	}
	for _, e := range events {
		if err := c.Take(e); err != nil {
			c.Problems = append(c.Problems, err)
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func read(r *http.Request) ([]cloudevents.Event, error) {
	if r.Header.Get("Content-Type") == cloudevents.ApplicationCloudEventsBatchJSON {
		return cehttp.NewEventsFromHTTPRequest(r)
	}
	e, err := cehttp.NewEventFromHTTPRequest(r)
	if err != nil {
		return nil, err
	}
	return []cloudevents.Event{*e}, nil
}
