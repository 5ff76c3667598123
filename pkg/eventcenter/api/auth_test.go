package api_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// A node sends only for itself; an identity that may only send may not read.
func TestIdentity(t *testing.T) {
	c := newCenter(t, by(&web.Identity{Name: "node", Cluster: "prod", Node: "a"}))
	own, other := raised("a", 1, "x", "fatal"), raised("a", 1, "x", "fatal")
	other.Cluster = "test"
	c.answers("another node", c.sending(own, raised("b", 1, "x", "fatal")), 403, `"index":1`)
	c.answers("another cluster", c.sending(own, other), 403, `"index":1`)
	foreign := `{"specversion":"1.0","id":"1","source":"urn:x","type":"x"}`
	c.answers("a foreign event", c.request(http.MethodPost, "/v1/events", single, foreign), 403)
	c.stored(0)
	c.send(own)
	for _, path := range []string{"/v1/events", "/v1/nodes", "/v1/nodes/prod/a", "/v1/faults", "/v1/avoid", "/metrics"} {
		c.answers(path, c.request(http.MethodGet, path, "", ""), 403)
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
		c.answers(host, r, want)
	}
}

type authorizer func(who web.Identity, verb, path string) error

func (a authorizer) Authorize(_ context.Context, who web.Identity, verb, path string) error {
	return a(who, verb, path)
}

// A reader may read the paths that the authorizer permits, and send no events.
func TestReader(t *testing.T) {
	asked := ""
	c := newCenter(t, func(config *api.Config) {
		by(&web.Identity{Name: "eve", Cluster: "prod", User: &web.User{Name: "eve"}})(config)
		config.Authorizer = authorizer(func(who web.Identity, verb, path string) error {
			asked = who.Name + " " + verb + " " + path
			if path == "/v1/nodes" {
				return nil
			}
			return &web.Refusal{Status: http.StatusServiceUnavailable, Reason: "cannot be asked", RetryWithin: time.Second}
		})
	})
	for _, test := range []struct {
		path, asked string
		status      int
	}{{"/v1/nodes", "/v1/nodes", 200}, {"/v1/nodes/prod/x", "/v1/nodes", 404}, {"/v1/faults", "/v1/faults", 503},
		{"/v1/events?after=0", "/v1/events", 503}, {"/metrics", "/metrics", 503}} {
		c.answers(test.path, c.request(http.MethodGet, test.path, "", ""), test.status)
		expecttest.Equal(t, "asked", "eve get "+test.asked, asked)
	}
	c.answers("HEAD", c.request(http.MethodHead, "/v1/faults", "", ""), 503)
	c.answers("sent", c.sending(raised("a", 1, "x", "fatal")), 403)
}

// A node that asks too often is told when to retry; other nodes are not affected.
func TestNodeRequests(t *testing.T) {
	who := web.Identity{Name: "node", By: "token", Cluster: "prod", Node: "a"}
	c := newCenter(t, func(config *api.Config) {
		now := time.Now()
		config.Now = func() time.Time { return now }
		config.Limits.NodeRequestsBurst = 3
		by(&who)(config)
	})
	for i, want := range []int{415, 415, 415, 429} {
		c.answers(fmt.Sprint(i), c.request(http.MethodPost, "/v1/events", "", ""), want)
	}
	who.Node, who.Unreviewed = "b", true
	c.send(raised("b", 1, "x", "fatal"))
}

// The right to read everything is not the right to change subscriptions: there is one per method. A node never has it.
func TestRightToSubscribe(t *testing.T) {
	rights := []string{"get /v1/subscriptions", "post /v1/dead-letters"}
	var who web.Identity
	c := newCenter(t, func(config *api.Config) {
		by(&who)(config)
		config.Authorizer = authorizer(func(_ web.Identity, verb, path string) error {
			if slices.Contains(rights, verb+" "+path) {
				return nil
			}
			return &web.Refusal{Status: http.StatusForbidden, Reason: "no right to " + verb + " " + path}
		})
	})
	page, user := web.Identity{Name: "page", Reads: true}, web.Identity{Name: "user", User: &web.User{Name: "user"}}
	for _, test := range []struct {
		who    web.Identity
		method string
		path   string
		want   int
	}{
		{page, "GET", "/v1/subscriptions", 404}, // this center delivers no events
		{page, "POST", "/v1/subscriptions", 403},
		{page, "DELETE", "/v1/subscriptions/a", 403},
		{page, "DELETE", "/v1/dead-letters/a/b", 403},
		{user, "GET", "/v1/subscriptions", 404},
		{user, "POST", "/v1/subscriptions", 403},
		{user, "POST", "/v1/subscriptions/a/pause", 403},
		{user, "POST", "/v1/dead-letters/a/b", 404},
		{user, "GET", "/v1/audit", 403},
		{web.Identity{Name: "administrator", Any: true}, "POST", "/v1/subscriptions", 404},
	} {
		who = test.who
		c.answers(who.Name+": "+test.method+" "+test.path, c.request(test.method, test.path, "", ""), test.want)
	}
}
