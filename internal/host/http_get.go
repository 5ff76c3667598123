package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Get sends a request to an HTTP server of this machine and returns the status, whatever it is, and the body. It uses a
// new connection, to prove that one can be made; no proxy, no redirect. A body above limit bytes is an error.
func Get(ctx context.Context, url string, limit int64) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err // contains method and URL
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("get %s: %w", url, err)
	case int64(len(body)) > limit:
		return 0, nil, fmt.Errorf("get %s: more than %d bytes", url, limit)
	}
	return response.StatusCode, body, nil
}
