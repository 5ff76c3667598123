package api_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
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
	if newest := c.Journal.Bounds().Newest; newest != 20 {
		t.Errorf("%d events are stored", newest)
	}
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
					who := web.Identity{Name: "eve", Reads: !asked || test.right}
					if asked {
						return who, test.err
					}
					asked = true
					return who, nil
				}
			})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/events", nil)
			must(t, err)
			r.Header.Set("Accept", "text/event-stream")
			begun := time.Now()
			s.ServeHTTP(&discarded{header: http.Header{}}, r)
			if took := time.Since(begun); took != test.want {
				t.Errorf("%s: it ended after %s, want %s", name, took, test.want)
			}
		})
	}
}

// discarded is a response writer that discards the response.
type discarded struct{ header http.Header }

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) WriteHeader(int)             {}
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarded) Flush()                      {}

// A sender that asks first, as CloudEvents web hooks do, learns that it may send, and how often.
func TestHandshake(t *testing.T) {
	c := newCenter(t, nil)
	r := c.request(http.MethodOptions, "/v1/events", "", "")
	r.Header.Set("WebHook-Request-Origin", "sender.example.com")
	r.Header.Set("WebHook-Request-Rate", "120")
	response, _ := c.do(r)
	if response.StatusCode != 200 || response.Header.Get("WebHook-Allowed-Origin") != "sender.example.com" ||
		response.Header.Get("WebHook-Allowed-Rate") != "6000" || !strings.Contains(response.Header.Get("Allow"), "POST") {
		t.Errorf("%d %v", response.StatusCode, response.Header)
	}
	if response, _ := c.do(c.request(http.MethodOptions, "/v1/events", "", "")); response.Header.Get("WebHook-Allowed-Origin") != "" {
		t.Error("what was not asked is answered")
	}
}

// Whatever foreign senders send, the list of events stays valid for strict JSON parsers, and each event is unchanged.
func TestForeignBytes(t *testing.T) {
	c := newCenter(t, nil)
	send := func(media, body, want string) {
		r := c.request(http.MethodPost, "/v1/events", media, body)
		for name, value := range map[string]string{"specversion": "1.0", "id": want, "source": "urn:x", "type": "x"} {
			r.Header.Set("Ce-"+name, value)
		}
		if response, answer := c.do(r); response.StatusCode != 200 {
			t.Errorf("%s: %d %s", media, response.StatusCode, answer)
		}
	}
	wants := []string{`"data_base64":"/wA="`, `"data_base64":"6Q=="`, `"data":{"a":1e400}`, `"data":[1]`}
	send("application/octet-stream", "\xff\x00", "0")
	send("text/plain; charset=latin1", "\xe9", "1")
	send("application/vnd.x+json", `{"a": 1e400}`, "2")
	send("application/json; charset=utf-8", `[1]`, "3")
	if response, answer := c.post(single, `{"specversion":"1.0","id":"9","source":"urn:x","type":"x","data":"`+"\xff"+`"}`); response.StatusCode != 400 {
		t.Errorf("invalid UTF-8: %d %s", response.StatusCode, answer)
	}
	_, text := c.do(c.request(http.MethodGet, "/v1/events", "", ""))
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if _, err := event.ReadEnvelope([]byte(`{"specversion":"1.0","id":"1","source":"u","type":"t","data":` + text + `}`)); err != nil {
		t.Errorf("a strict parser refuses the answer: %v", err)
	}
}
