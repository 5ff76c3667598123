package deliver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

const (
	attemptLimit = 30 * time.Second
	maxAnswer    = 4 << 10 // bytes of a response body that are read
	maxError     = 300     // bytes of an error text that are kept
)

// item is one event to be sent.
type item struct {
	ID   string // the same in every attempt
	JSON []byte
}

// refusal is any answer except 2xx.
type refusal struct {
	status     int
	retryAfter time.Duration
	text       string
}

func (r *refusal) Error() string {
	text := strconv.Itoa(r.status) + " " + http.StatusText(r.status)
	if r.status >= 300 && r.status < 400 {
		text += " (redirects are not followed)"
	}
	if r.text != "" {
		text += ": " + r.text
	}
	return text
}

// encode puts events into one request. Only batch mode takes more than one.
func encode(mode Mode, items []item) (http.Header, []byte, error) {
	switch mode {
	case Structured:
		return http.Header{"Content-Type": {event.MediaType}}, items[0].JSON, nil
	case Binary:
		return event.Binary(items[0].JSON)
	}
	var body bytes.Buffer
	for i, one := range items {
		body.WriteByte("[,"[min(i, 1)])
		body.Write(one.JSON)
	}
	body.WriteByte(']')
	return http.Header{"Content-Type": {event.BatchMediaType}}, body.Bytes(), nil
}

// idOf returns the ID of a request: the same events get the same ID.
func idOf(items []item) string {
	if len(items) == 1 {
		return items[0].ID
	}
	return fmt.Sprintf("%s_%s_%d", items[0].ID, items[len(items)-1].ID, len(items))
}

// ask sends a request and returns the response headers.
func ask(ctx context.Context, client http.RoundTripper, request *http.Request) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	response, err := client.RoundTrip(request.WithContext(ctx)) // no redirects, no cookies, unlike http.Client
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return response.Header, nil // even if the rest of the body cannot be read
	}
	if err != nil {
		text = nil
	}
	return response.Header, &refusal{response.StatusCode, event.RetryAfter(response.Header, time.Now()),
		plain(string(text))}
}

// plain returns foreign text as one short line.
func plain(text string) string { return event.Brief(text, maxError) }

// handshake asks a target whether it wants events (CloudEvents HTTP 1.1 Web Hooks for Event Delivery, section 4), and
// returns how many requests it accepts per minute; 0: any number.
func handshake(ctx context.Context, client http.RoundTripper, address, origin string) (perMinute int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodOptions, address, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("WebHook-Request-Origin", origin)
	answer, err := ask(ctx, client, request)
	if err != nil {
		return 0, fmt.Errorf("asked by OPTIONS: %w", err)
	}
	if allowed := answer.Get("WebHook-Allowed-Origin"); allowed != "*" && !strings.EqualFold(allowed, origin) {
		return 0, fmt.Errorf("asked by OPTIONS: its WebHook-Allowed-Origin is %.100q, not %q", plain(allowed), origin)
	}
	if text := answer.Get("WebHook-Allowed-Rate"); text != "" && text != "*" {
		if perMinute, err = strconv.Atoi(text); err != nil || perMinute < 1 {
			return 0, fmt.Errorf("asked by OPTIONS: its WebHook-Allowed-Rate is %.40q", plain(text))
		}
	}
	return perMinute, nil
}
