package api_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// piped is a listener whose connections stay within a bubble of synctest.
type piped chan net.Conn

func (p piped) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p piped) Close() error { return nil }

func (p piped) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// served serves a handler within a bubble of synctest, and returns a client of it and what ends both.
func served(handler http.Handler, http2 bool) (client *http.Transport, end func()) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(http2)
	protocols.SetHTTP1(!http2)
	connections := make(piped)
	server := &http.Server{Handler: handler, Protocols: &protocols}
	go func() { _ = server.Serve(connections) }()
	client = &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		connections <- far
		return near, nil
	}}
	return client, func() {
		close(connections)
		_ = server.Close()
		client.CloseIdleConnections()
	}
}

// A quiet stream stays open over HTTP/2: it gets the comments of each 15 s, the bookmark of each minute, and then an event.
func TestQuietStreamOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &scripted{}
		j.set(1, 1)
		client, end := served(offline(t, j), true)
		defer end()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/events", nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Accept", "text/event-stream")
		response, err := client.RoundTrip(r)
		must(t, err)
		defer response.Body.Close()
		time.AfterFunc(70*time.Second, func() { j.set(1, 2) })
		got := ""
		lines := bufio.NewScanner(response.Body)
		for !strings.Contains(got, "id: 2") && lines.Scan() {
			got += lines.Text() + "\n"
		}
		if lines.Err() != nil || strings.Count(got, ": \n") != 4 || strings.Count(got, "bookmark") != 2 {
			t.Errorf("%v after %q", lines.Err(), got)
		}
	})
}

// laborious is a journal of which each page takes 10 s, and has one event.
type laborious struct{ *scripted }

func (l laborious) Read(_ context.Context, q journal.Query) (journal.Page, error) {
	time.Sleep(10 * time.Second)
	return journal.Page{Records: l.records[q.After : q.After+1], Next: q.After + 1}, nil
}

// A stream that is busy with a backlog sends comments and bookmarks, and ends when the reader's right has ended. It shows
// its position after each page without an event for the subscriber, except the newest.
func TestStreamOfABacklog(t *testing.T) {
	for name, test := range map[string]struct {
		query  string
		newest uint64
		marks  []int // bookmarks, the first one included; in 120 s, when two ticks are due at once
	}{
		"all are sent":  {"", 1000, []int{2}},
		"none is sent":  {"?cel=false", 1000, []int{13, 14}},
		"none is newer": {"?cel=false", 3, []int{4}},
	} {
		synctest.Test(t, func(t *testing.T) {
			j, begun := &scripted{}, time.Now()
			j.set(1, test.newest)
			s := offline(t, j, func(config *api.Config) {
				known := config.Authenticate
				config.Journal = laborious{j}
				config.Authenticate = func(r *http.Request) (web.Identity, error) {
					if time.Since(begun) > 90*time.Second {
						return web.Identity{}, &web.Refusal{Status: http.StatusUnauthorized, Reason: "the session has ended"}
					}
					return known(r)
				}
			})
			r := eventsRequest(t.Context(), test.query)
			r.Header.Set("Accept", "text/event-stream")
			w := &screen{ResponseWriter: httptest.NewRecorder()}
			s.ServeHTTP(w, r)
			lasted, got := time.Since(begun), w.take()
			if lasted != 2*time.Minute || strings.Count(got, ": \n\n") < 7 || !slices.Contains(test.marks, strings.Count(got, "bookmark")) {
				t.Errorf("%s: it lasts %s: %s", name, lasted, got)
			}
		})
	}
}
