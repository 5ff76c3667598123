package deliver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

const (
	attemptLimit = 30 * time.Second
	maxError     = 300 // bytes of an error text that are kept
)

// item is one event to be sent.
type item struct {
	ID   string // the same in every attempt
	JSON []byte
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
	return event.Send(client, request.WithContext(ctx))
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
