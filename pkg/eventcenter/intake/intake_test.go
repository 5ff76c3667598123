package intake

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const path = "/v1/events"

// kit is a listener with an http.Server behind it. The handler says who served a request, and what it was.
type kit struct {
	*Listener
	server *http.Server
}

func start(t *testing.T, config *tls.Config, answer http.HandlerFunc) *kit {
	t.Helper()
	return startWith(t, config, answer, Config{Most: 512, Queue: time.Minute})
}

// startWith starts a listener with what a Config says of how many requests are worked on.
func startWith(t *testing.T, config *tls.Config, answer http.HandlerFunc, with Config) *kit {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		inner = tls.NewListener(inner, config)
	}
	return startOn(t, inner, answer, with)
}

func startOn(t *testing.T, inner net.Listener, answer http.HandlerFunc, with Config) *kit {
	t.Helper()
	k := &kit{server: &http.Server{Handler: answer, ReadHeaderTimeout: time.Minute}}
	k.Listener = New(inner, Config{Handler: answer, Path: path, Head: time.Minute, Body: time.Minute, Idle: time.Minute,
		Most: with.Most, Queue: with.Queue, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	served := make(chan error, 1)
	go func() { served <- k.server.Serve(k.Listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := k.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		k.Wait(ctx)
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if ctx.Err() != nil || len(k.conns) > 0 {
			t.Errorf("%d connections are left", len(k.conns))
		}
	})
	return k
}

// says answers with what it was asked, and by whom: an http.Server leaves its mark in the context.
func says(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	by := "intake"
	if r.Context().Value(http.ServerContextKey) != nil {
		by = "http.Server"
	}
	w.Header().Set("X-By", by)
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, "%s %s %s %s %q %v TLS %v", r.Method, r.Host, r.URL, r.Header.Get("Content-Type"), text, err, r.TLS != nil)
}

// agent returns a client with a connection of its own, as an agent has it.
func agent(t *testing.T, config *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: config, MaxConnsPerHost: 1,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func send(t *testing.T, c *http.Client, method, url, text string) (by, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x")
	r.Header.Set("Authorization", "Bearer secret")
	response, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusAccepted || response.Header.Get("Date") == "" {
		t.Errorf("%s %v %s: %v", response.Status, response.Header, body, err)
	}
	return response.Header.Get("X-By"), string(body)
}

// What an agent sends is answered here, again and again on one connection; anything else by the http.Server, on the same
// connection too. Both say the same, with and without TLS.
func TestServed(t *testing.T) {
	for scheme, config := range schemes(t) {
		t.Run(scheme, func(t *testing.T) {
			k := start(t, config[0], says)
			c := agent(t, config[1])
			base := scheme + "://" + k.Addr().String()
			long := strings.Repeat("x", maxBody)
			for _, test := range []struct{ method, path, text, by string }{
				{http.MethodPost, path, "a", "intake"},
				{http.MethodPost, path, "b", "intake"},
				{http.MethodPost, path, long, "intake"},
				{http.MethodPost, path, long + "y", "http.Server"},
				{http.MethodPost, path, "c", "http.Server"}, // where it went once
			} {
				by, answer := send(t, c, test.method, base+test.path, test.text)
				want := fmt.Sprintf("%s %s %s application/x %q <nil> TLS %v", test.method, k.Addr(), test.path, test.text,
					scheme == "https")
				if by != test.by || answer != want {
					t.Errorf("%s %.20s: by %s, %.200s", test.method, test.text, by, answer)
				}
			}
			for _, test := range []struct{ method, path, text string }{
				{http.MethodGet, path, ""}, {http.MethodPut, path, "x"}, {http.MethodPost, path, ""},
				{http.MethodPost, "/other", "x"}, {http.MethodPost, path + "?a=b", "x"},
			} {
				if by, _ := send(t, agent(t, config[1]), test.method, base+test.path, test.text); by != "http.Server" {
					t.Errorf("%s %s %q: by %s", test.method, test.path, test.text, by)
				}
			}
		})
	}
}

// raw sends a text as it is, in parts, and returns the answers until the connection ends.
func raw(t *testing.T, k *kit, parts ...string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", k.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, part := range parts {
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answers, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answers)
}

const plain = "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"

// However a request comes in, nothing of it is lost on the way to whom answers it.
func TestRaw(t *testing.T) {
	k := start(t, nil, says)
	for name, test := range map[string]struct {
		parts []string
		want  []string // in this order
	}{
		"whole":      {[]string{plain}, []string{"202", "X-By: intake", `"hi" <nil>`}},
		"in letters": {strings.Split(plain, ""), []string{"202", "X-By: intake", `"hi" <nil>`}},
		"pipelined":  {[]string{plain + plain}, []string{"X-By: http.Server", `"hi" <nil>`, "X-By: http.Server", `"hi" <nil>`}},
		"a long head": {[]string{strings.Replace(plain, "Host", "X: "+strings.Repeat("x", headSize)+"\r\nHost", 1)},
			[]string{"X-By: http.Server", `"hi" <nil>`}},
		"in chunks": {[]string{strings.NewReplacer("Content-Length: 2", "Transfer-Encoding: chunked", "hi", "2\r\nhi\r\n0\r\n\r\n").
			Replace(plain)}, []string{"X-By: http.Server", `"hi" <nil>`}},
		"expects to go on": {[]string{strings.Replace(plain, "Host", "Expect: 100-continue\r\nHost", 1)},
			[]string{"100 Continue", "X-By: http.Server", `"hi" <nil>`}},
		"ends early":   {[]string{strings.Replace(plain, ": 2", ": 3", 1)}, []string{"unexpected EOF"}},
		"no HTTP":      {[]string{"hello\r\n\r\n"}, []string{"400 Bad Request"}},
		"no host":      {[]string{strings.Replace(plain, "Host: a\r\n", "", 1)}, []string{"400 Bad Request"}},
		"two hosts":    {[]string{strings.Replace(plain, "Host: a\r\n", "Host: a\r\nHost: b\r\n", 1)}, []string{"400 Bad Request"}},
		"two lengths":  {[]string{strings.Replace(plain, "Host", "Content-Length: 1\r\nHost", 1)}, []string{"400 Bad Request"}},
		"both lengths": {[]string{strings.Replace(plain, "Host", "Transfer-Encoding: x\r\nHost", 1)}, []string{"501"}},
		"folded":       {[]string{strings.Replace(plain, "Host: a", "Host: a\r\n b", 1)}, []string{"400 Bad Request"}},
		"nothing":      {nil, nil},
		"half a head":  {[]string{plain[:20]}, nil},
	} {
		answers := raw(t, k, test.parts...)
		rest := answers
		for _, want := range test.want {
			_, after, found := strings.Cut(rest, want)
			if rest = after; !found {
				t.Errorf("%s: no %q in\n%s", name, want, answers)
			}
		}
		if len(test.want) == 0 && answers != "" {
			t.Errorf("%s: %s", name, answers)
		}
	}
}

// What the handler leaves of a body is not taken for the next request, and a handler that panics ends its connection alone.
func TestHandlers(t *testing.T) {
	k := start(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("User-Agent") == "panic" {
			panic("on purpose")
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	request := strings.Replace(plain, "Content-Length: 2", "Content-Length: 10002", 1) + strings.Repeat("x", 10_000)
	if answers := raw(t, k, request+plain); strings.Count(answers, "401 Unauthorized") != 2 {
		t.Errorf("of two requests:\n%s", answers)
	}
	if answers := raw(t, k, strings.Replace(plain, "Host", "User-Agent: panic\r\nHost", 1)); answers != "" {
		t.Errorf("after a panic:\n%s", answers)
	}
	if answers := raw(t, k, plain); !strings.Contains(answers, "401 Unauthorized") {
		t.Errorf("later:\n%s", answers)
	}
}

// At the end idle connections are closed at once, and a request that is worked on is answered.
func TestEnd(t *testing.T) {
	begun, answer := make(chan struct{}), make(chan struct{})
	k := start(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") == "slow" {
			close(begun)
			<-answer
		}
		says(w, r)
	})
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", k.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	quiet, used, working := dial(), dial(), dial()
	in := bufio.NewReader(used)
	if _, err := io.WriteString(used, plain); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(working, strings.Replace(plain, "Host", "Content-Type: slow\r\nHost", 1)); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := k.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]io.Reader{"quiet": quiet, "used": in} {
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	close(answer)
	answers, err := io.ReadAll(working)
	if err != nil || !strings.Contains(string(answers), "202 Accepted") || !strings.Contains(string(answers), "Connection: close") {
		t.Errorf("%s%v", answers, err)
	}
}

// What is understood here, an http.Server understands in the same way.
func FuzzParse(f *testing.F) {
	head, _, _ := strings.Cut(plain, "hi")
	f.Add([]byte(head))
	f.Add([]byte("POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1:10685\r\nUser-Agent: nodeagent/v1.0.0\r\nContent-Length: 812\r\n" +
		"Authorization: Bearer 0123\r\nContent-Type: application/cloudevents-batch+json\r\n\r\n"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if end := bytes.Index(head, []byte("\r\n\r\n")); end < 0 || end+4 != len(head) {
			return // it is not what is parsed
		}
		c := &conn{of: &Listener{Config: Config{Path: path}}}
		got, ok := c.parse(head)
		if !ok {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			t.Fatalf("%q: %v", head, err)
		}
		type read struct {
			Method, URI, Path, Proto, Host string
			Length                         int64
			Header                         http.Header
			Chunked, Close                 bool
		}
		of := func(r *http.Request) read {
			return read{r.Method, r.RequestURI, r.URL.String(), r.Proto, r.Host, r.ContentLength, r.Header,
				len(r.TransferEncoding) > 0, r.Close}
		}
		if diff := cmp.Diff(of(want), of(got)); diff != "" {
			t.Errorf("%q: %s", head, diff)
		}
	})
}
