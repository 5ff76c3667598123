package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// byHeader identifies a node by a header.
func byHeader(r *http.Request) (web.Identity, error) {
	return web.Identity{Name: "node", By: "token", Cluster: "prod", Node: r.Header.Get("Node")}, nil
}

func (c *center) as(node, media string, body io.Reader, size int64) *http.Request {
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url+"/v1/events", body)
	must(c.t, err)
	r.ContentLength = size
	r.Header.Set("Content-Type", media)
	r.Header.Set("Node", node)
	return r
}

// While other nodes announce bodies without sending them, send as much as they can, or send undecodable bodies, all
// events of an honest node are stored.
func TestFair(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Authenticate = byHeader
		config.Limits = api.Limits{Bytes: 4 << 20, NodeRequests: 1e6, NodeRequestsBurst: 1e6}
	})
	var others sync.WaitGroup
	stop := make(chan struct{})
	send := func(r *http.Request) int {
		response, err := asAgents.Do(r)
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	for range 8 { // announce the most, and send one byte
		body, in := io.Pipe()
		others.Go(func() { send(c.as("stalled", batch, body, 1<<20)) })
		others.Go(func() {
			_, _ = in.Write([]byte("["))
			<-stop
			_ = in.CloseWithError(io.ErrUnexpectedEOF)
		})
	}
	refused := make(chan int, 1)
	for _, node := range []string{"flooding", "malicious"} {
		text := strings.Repeat(" ", 900<<10) + "[]"
		if node == "malicious" {
			text = "[" + strings.Repeat("[", 900<<10)
		}
		for range 4 {
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if status := send(c.as(node, batch, strings.NewReader(text), int64(len(text)))); status == 429 {
						select {
						case refused <- status:
						default:
						}
					}
				}
			})
		}
	}
	for i := range 20 {
		text := encode(t, raised("honest", uint64(i+1), "x", "fatal"))
		if status := send(c.as("honest", batch, strings.NewReader(text), int64(len(text)))); status != http.StatusOK {
			t.Errorf("request %d of the honest node: %d", i, status)
		}
	}
	<-refused // the center refuses a flooding node beyond its share
	close(stop)
	others.Wait()
	c.stored(20)
}

// One reader has a limited number of streams; another reader still gets one.
func TestStreamsOfOneReader(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Limits = api.Limits{Streams: 10, OwnStreams: 2}
		config.Authenticate = func(r *http.Request) (web.Identity, error) {
			return web.Identity{Name: r.Header.Get("Node"), Reads: true}, nil
		}
	})
	for i, test := range []struct {
		reader string
		want   int
	}{{"a", 200}, {"a", 200}, {"a", 429}, {"b", 200}} {
		r := c.request(http.MethodGet, "/v1/events", "", "")
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Node", test.reader)
		response, err := asAgents.Do(r)
		must(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		if response.StatusCode != test.want {
			t.Errorf("%d: %d, want %d", i, response.StatusCode, test.want)
		}
	}
}

// A stream ends within a minute after its reader's session or right has ended. While that cannot be checked, it
// continues for ten minutes.
func TestStreamOfNoReader(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		right bool
		want  time.Duration
	}{
		"session ended":  {&web.Refusal{Status: 401, Reason: "ended"}, true, time.Minute},
		"right taken":    {nil, false, time.Minute},
		"cannot be told": {&web.Refusal{Status: 503, Reason: "away", RetryWithin: time.Second}, true, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := false
			s := offline(t, &scripted{}, func(config *api.Config) {
				config.Authenticate = func(*http.Request) (web.Identity, error) {
					if !asked {
						asked = true
						return web.Identity{Name: "eve", Reads: true}, nil
					}
					return web.Identity{Name: "eve", Reads: test.right}, test.err
				}
			})
			r := eventsRequest(t.Context(), "")
			r.Header.Set("Accept", "text/event-stream")
			begun := time.Now()
			s.ServeHTTP(&screen{ResponseWriter: httptest.NewRecorder()}, r)
			expecttest.Equal(t, name+": it ended after", test.want, time.Since(begun))
		})
	}
}

// If more arrives than can be stored, the center works on a limited amount; other senders are asked to retry before
// they time out, so that no work is wasted.
func TestBusy(t *testing.T) {
	t.Parallel()
	held, over := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	c := newCenter(t, func(config *api.Config) {
		j := config.Journal
		config.Journal = &appending{j, func(ctx context.Context, events []journal.Event) (journal.Appended, error) {
			if calls.Add(1) == 1 {
				close(held)
				<-over
			}
			return j.Append(ctx, events)
		}}
		config.Limits = api.Limits{Bytes: 64 << 10}
	})
	var first sync.WaitGroup
	first.Go(func() { c.answers("the first", c.sending(raised("a", 1, "x", "fatal")), 200) })
	<-held
	c.answers("another", c.sending(raised("b", 1, "x", "fatal")), 429)
	expecttest.Equal(t, "stored beside the first", 0, calls.Load()-1)
	close(over)
	first.Wait()
	c.answers("again", c.sending(raised("b", 1, "x", "fatal")), 200)
	c.stored(2)
}
