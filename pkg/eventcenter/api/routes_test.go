package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// A path of the interface is answered in JSON, never with a page, also if it has no such method or does not exist.
func TestUnrouted(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Pages = func(*api.Server) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
		}
	})
	for request, want := range map[string]string{
		"PUT /v1/events":        "405 GET, HEAD, OPTIONS, POST",
		"DELETE /v1/events":     "405 GET, HEAD, OPTIONS, POST",
		"POST /v1/avoid":        "405 GET, HEAD",
		"BREW /v1/nodes/prod/a": "405 GET, HEAD",
		"GET /v1/faults/x":      "404 ",
		"GET /v1/":              "404 ",
		"PUT /v1/nothing":       "404 ",
	} {
		method, path, _ := strings.Cut(request, " ")
		r, answer := c.do(c.request(method, path, "", ""))
		if got := fmt.Sprint(r.StatusCode, " ", r.Header.Get("Allow")); got != want || !strings.HasPrefix(answer, `{"error":`) {
			t.Errorf("%s: %d %q %s", request, r.StatusCode, r.Header.Get("Allow"), answer)
		}
	}
	if _, answer := c.do(c.request(http.MethodPut, "/page", "", "")); answer != "<html>" {
		t.Errorf("a page: %s", answer)
	}
}

// The name of the scheme of a token may have any case.
func TestSchemeInAnyCase(t *testing.T) {
	c := newCenter(t, nil)
	for given, want := range map[string]int{"bearer " + token: 200, "BEARER " + token: 200, "bearer": 401, "bearers " + token: 401} {
		r := c.request(http.MethodGet, "/v1/nodes", "", "")
		r.Header.Set("Authorization", given)
		response, err := http.DefaultClient.Do(r)
		must(t, err)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%q: %d", given, response.StatusCode)
		}
	}
}
