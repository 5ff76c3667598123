package api_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// A node sends only for itself; an identity that may only send may not read.
func TestIdentity(t *testing.T) {
	c := newCenter(t, func(config *api.Config) {
		config.Authenticate = func(*http.Request) (web.Identity, error) {
			return web.Identity{Name: "node", Cluster: "prod", Node: "a"}, nil
		}
	})
	other := raised("a", 1, "x", "fatal")
	other.Cluster = "test"
	for name, e := range map[string]event.Event{"another node": raised("b", 1, "x", "fatal"), "another cluster": other} {
		r, answer := c.post(batch, encode(t, raised("a", 1, "x", "fatal"), e))
		if r.StatusCode != 403 || !strings.Contains(answer, `"index":1`) {
			t.Errorf("%s: %d %s", name, r.StatusCode, answer)
		}
	}
	foreign := `{"specversion":"1.0","id":"1","source":"urn:x","type":"x"}`
	if r, answer := c.post(single, foreign); r.StatusCode != 403 {
		t.Errorf("a foreign event: %d %s", r.StatusCode, answer)
	}
	if newest := c.Journal.Bounds().Newest; newest != 0 {
		t.Errorf("%d events are stored", newest)
	}
	c.send(raised("a", 1, "x", "fatal"))
	for _, path := range []string{"/v1/events", "/v1/nodes", "/v1/nodes/prod/a", "/v1/faults", "/v1/avoid", "/metrics"} {
		if r, _ := c.do(c.request(http.MethodGet, path, "", "")); r.StatusCode != 403 {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
}

func TestToken(t *testing.T) {
	c := newCenter(t, nil)
	for _, given := range []string{"", "Bearer ", "Bearer " + token[1:], "Bearer " + token + "0", "Basic " + token} {
		for _, r := range []*http.Request{c.request("GET", "/v1/nodes", "", ""),
			c.request("POST", "/v1/events", batch, "[]")} {
			r.Header.Set("Authorization", given)
			response, err := http.DefaultClient.Do(r)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != 401 || response.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%q: %d", given, response.StatusCode)
			}
		}
	}
}

// A browser page cannot reach the center by a name that its server resolves to this machine.
func TestHost(t *testing.T) {
	c := newCenter(t, nil)
	for host, want := range map[string]int{"evil.example": 421, "evil.example:10685": 421, "10.0.0.1": 421,
		"localhost.evil.example": 421, "localhost:1": 200, "127.0.0.1": 200, "[::1]:10685": 200} {
		r := c.request(http.MethodGet, "/healthz", "", "")
		r.Host = host
		if response, _ := c.do(r); response.StatusCode != want {
			t.Errorf("Host %s: %d, want %d", host, response.StatusCode, want)
		}
	}
}

// rights is an authorizer that knows one path.
type rights struct{ asked []string }

func (r *rights) Authorize(_ context.Context, who web.Identity, verb, path string) error {
	r.asked = append(r.asked, who.Name+" "+verb+" "+path)
	if path == "/v1/nodes" {
		return nil
	}
	return &web.Refusal{Status: http.StatusServiceUnavailable, Reason: "cannot be asked", RetryWithin: time.Second}
}

// A reader may read the paths that the authorizer permits, and send no events.
func TestReader(t *testing.T) {
	r := &rights{}
	c := newCenter(t, func(config *api.Config) {
		config.Authenticate = func(*http.Request) (web.Identity, error) {
			return web.Identity{Name: "eve", Cluster: "prod", User: &web.User{Name: "eve"}}, nil
		}
		config.Authorizer = r
	})
	for _, test := range []struct {
		path, asked string
		status      int
	}{{"/v1/nodes", "/v1/nodes", 200}, {"/v1/nodes/prod/x", "/v1/nodes", 404}, {"/v1/faults", "/v1/faults", 503},
		{"/v1/events?after=0", "/v1/events", 503}, {"/metrics", "/metrics", 503}} {
		reply, _ := c.do(c.request(http.MethodGet, test.path, "", ""))
		if last := r.asked[len(r.asked)-1]; reply.StatusCode != test.status || last != "eve get "+test.asked {
			t.Errorf("%s: %d, asked %s", test.path, reply.StatusCode, last)
		}
		if (reply.Header.Get("Retry-After") != "") != (test.status == 503) {
			t.Errorf("%s: Retry-After %q", test.path, reply.Header.Get("Retry-After"))
		}
	}
	if reply, _ := c.do(c.request(http.MethodHead, "/v1/faults", "", "")); reply.StatusCode != 503 {
		t.Errorf("HEAD: %d", reply.StatusCode)
	}
	if reply, answer := c.post(batch, encode(t, raised("a", 1, "x", "fatal"))); reply.StatusCode != 403 {
		t.Errorf("sent: %d %s", reply.StatusCode, answer)
	}
}

// A node that asks too often is told when to retry; other nodes are not affected.
func TestNodeRequests(t *testing.T) {
	node := "a"
	c := newCenter(t, func(config *api.Config) {
		now := time.Now()
		config.Now = func() time.Time { return now }
		config.Limits.NodeRequestsBurst = 3
		config.Authenticate = func(*http.Request) (web.Identity, error) {
			return web.Identity{Name: "node", By: "token", Cluster: "prod", Node: node, Unreviewed: node == "b"}, nil
		}
	})
	for i, want := range []int{415, 415, 415, 429} {
		if r, answer := c.post("", ""); r.StatusCode != want || (r.Header.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("%d: %d %s", i, r.StatusCode, answer)
		}
	}
	node = "b"
	c.send(raised("b", 1, "x", "fatal"))
}

// verbs is an authorizer that knows rights, as "VERB PATH".
type verbs []string

func (v verbs) Authorize(_ context.Context, _ web.Identity, verb, path string) error {
	if slices.Contains(v, verb+" "+path) {
		return nil
	}
	return &web.Refusal{Status: http.StatusForbidden, Reason: "no right to " + verb + " " + path}
}

// The right to read everything is not the right to change subscriptions: there is one per method. A node never has it.
func TestRightToSubscribe(t *testing.T) {
	r := verbs{"get /v1/subscriptions", "post /v1/dead-letters"}
	var who web.Identity
	c := newCenter(t, func(config *api.Config) {
		config.Authorizer = r
		config.Authenticate = func(*http.Request) (web.Identity, error) { return who, nil }
	})
	for _, test := range []struct {
		who    web.Identity
		method string
		path   string
		want   int
	}{
		{web.Identity{Name: "page", Reads: true}, "GET", "/v1/subscriptions", 404}, // this center delivers no events
		{web.Identity{Name: "page", Reads: true}, "POST", "/v1/subscriptions", 403},
		{web.Identity{Name: "page", Reads: true}, "DELETE", "/v1/subscriptions/a", 403},
		{web.Identity{Name: "page", Reads: true}, "DELETE", "/v1/dead-letters/a/b", 403},
		{web.Identity{Name: "user", User: &web.User{Name: "user"}}, "GET", "/v1/subscriptions", 404},
		{web.Identity{Name: "user", User: &web.User{Name: "user"}}, "POST", "/v1/subscriptions", 403},
		{web.Identity{Name: "user", User: &web.User{Name: "user"}}, "POST", "/v1/subscriptions/a/pause", 403},
		{web.Identity{Name: "user", User: &web.User{Name: "user"}}, "POST", "/v1/dead-letters/a/b", 404},
		{web.Identity{Name: "user", User: &web.User{Name: "user"}}, "GET", "/v1/audit", 403},
		{web.Identity{Name: "administrator", Any: true}, "POST", "/v1/subscriptions", 404},
	} {
		who = test.who
		if got, answer := c.do(c.request(test.method, test.path, "", "")); got.StatusCode != test.want {
			t.Errorf("%s: %s %s: %d, want %d: %s", who.Name, test.method, test.path, got.StatusCode, test.want, answer)
		}
	}
}
