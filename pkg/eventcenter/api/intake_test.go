package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A body that comes too slowly is refused so that its sender keeps the events and sends them again; a body that ends early
// is wrong.
func TestSlowBody(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, end := served(offline(t, &scripted{}), http2)
			defer end()
			body, in := io.Pipe()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/v1/events", body)
			must(t, err)
			r.ContentLength = 100
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", batch)
			go func() { _, _ = in.Write([]byte("[")) }()
			begun := time.Now()
			response, err := client.RoundTrip(r)
			must(t, err)
			answer, err := io.ReadAll(response.Body)
			must(t, err)
			if response.StatusCode != http.StatusRequestTimeout || response.Header.Get("Retry-After") == "" ||
				!strings.Contains(string(answer), "too slowly") || time.Since(begun) > 11*time.Second {
				t.Errorf("HTTP/2 %t: %d %s %s", http2, response.StatusCode, response.Header, answer)
			}
			_, _ = in.CloseWithError(io.ErrUnexpectedEOF), response.Body.Close()
		})
	}
}
