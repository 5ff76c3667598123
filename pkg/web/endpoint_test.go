package web

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestEndpoint(t *testing.T) {
	for _, c := range []struct {
		Endpoint
		loopback bool
		problem  string
	}{
		{Endpoint{Address: "127.0.0.1:0"}, true, ""},
		{Endpoint{Address: "[::1]:0"}, true, ""},
		{Endpoint{Address: "localhost:0"}, true, ""},
		{Endpoint{Address: "127.0.0.1:0", CertFile: "a", KeyFile: "b"}, true, ""},
		{Endpoint{Address: ":0", CertFile: "a", KeyFile: "b"}, false, ""},
		{Endpoint{Address: ":0"}, false, "any address but loopback needs --tls-cert"},
		{Endpoint{Address: "0.0.0.0:0"}, false, "any address but loopback needs --tls-cert"},
		{Endpoint{Address: "localhost.example.com:0"}, false, "any address but loopback needs --tls-cert"},
		{Endpoint{Address: "127.0.0.1:0", CertFile: "a"}, true, "belong together"},
		{Endpoint{Address: "127.0.0.1:0", KeyFile: "b"}, true, "belong together"},
		{Endpoint{Address: "nothing"}, false, `--listen "nothing"`},
	} {
		err := c.Validate()
		if c.Loopback() != c.loopback || (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%+v: loopback %t, %v", c.Endpoint, c.Loopback(), err)
		}
	}
	if _, _, err := (Endpoint{Address: "127.0.0.1:0", CertFile: "/none", KeyFile: "/none"}).Listen(1, 1, nil); err == nil {
		t.Error("it listens without its certificate")
	}
	listener, address, err := Endpoint{Address: "127.0.0.1:0"}.Listen(1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, port, _ := net.SplitHostPort(listener.Addr().String()); address != "http://127.0.0.1:"+port {
		t.Error(address)
	}
}

// At the end, the server waits for an open request, but not for ever.
func TestServe(t *testing.T) {
	for limit, wanted := range map[time.Duration]bool{time.Minute: true, time.Millisecond: false} {
		listener, address, err := Endpoint{Address: "127.0.0.1:0"}.Listen(1, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-r.Context().Done():
			}
		})
		go func() { ended <- Serve(ctx, listener, handler, limit, slog.New(slog.DiscardHandler)) }()
		response, err := http.Get(address) // a test
		if err == nil {
			response.Body.Close()
		}
		if (err == nil) != wanted {
			t.Errorf("limit %s: %v", limit, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("limit %s: %v", limit, err)
		}
	}
}
