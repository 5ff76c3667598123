// Package api serves verdicts over HTTP. It is read-only. Who may get the pods of a namespace may read their verdicts.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

const (
	askLimit  = 30 * time.Second
	maxName   = 253 // bytes of a name
	maxNodes  = 1000
	blindFrom = 30 * time.Second // a watch further behind cannot see the cluster
	storedIn  = 30 * time.Second // not ready if no batch was stored for this long
)

// Server answers requests. Its exported fields are set before the first request.
type Server struct {
	Follower     *follow.Follower
	Store        *store.Store
	Prober       *probe.Prober
	Alerts       func() []health.Alert // firing ones; nil: none are known
	Sender       *messages.Sender      // of faults of nodes, to an event center; nil: there is none
	Access       Access
	Authenticate func(*http.Request) (web.Identity, error)                 // identifies the sender of a request
	SignIn       func(context.Context, web.Person) (web.SignInCode, error) // nil: there are no pages
	Pages        http.Handler                                              // nil: there are none
	Loopback     bool                                                      // it listens on loopback only
	Log          *slog.Logger
	Now          func() time.Time

	saved atomic.Int64 // when the last batch was stored, in Unix ns

	reports sync.Mutex // held while a report is made

	announcer announcer
	center    centerList

	mu      sync.Mutex // guards the fields below
	tracker health.Tracker
	health  health.State

	nodes      nodefault.Tracker
	nodeFaults Nodes
}

// Saved records that a batch was stored.
func (s *Server) Saved(at time.Time) { s.saved.Store(at.UnixNano()) }

// Handler returns the interface, and the pages.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.ready)
	for pattern, route := range map[string]struct {
		answer handler
		may    func(*http.Request, web.Identity) error
	}{
		"GET /v1/slis":                    {answers(s, s.SLIs), s.ofPods},
		"GET /v1/failures":                {answers(s, s.Failures), s.ofPods},
		"GET /v1/report":                  {s.getReport, s.ofPods},
		"GET /v1/terminating":             {answers(s, s.Terminating), s.ofPods},
		"GET /v1/tenants":                 {answers(s, s.Tenants), s.ofPods},
		"GET /v1/pods/{uid}":              {s.getPod, anyone},
		"GET /v1/pods/{namespace}/{name}": {s.getPod, s.ofPods},
		"GET /v1/nodes":                   {answers(s, s.Nodes), s.ofCluster},
		"GET /v1/avoid":                   {answers(s, s.Avoid), s.ofPath},
		"GET /v1/versions":                {answers(s, s.Versions), s.ofPath},
		"GET /v1/components":              {answers(s, s.Components), s.ofPath},
		"GET /v1/health":                  {func(w http.ResponseWriter, _ *http.Request, _ web.Identity) { s.answer(w, s.Health()) }, s.ofPath},
		"GET /metrics":                    {s.metrics(), s.ofPath},
		"POST /v1/sign-in-codes":          {s.signInCode, anyone},
	} {
		mux.HandleFunc(pattern, s.guarded(route.answer, route.may))
	}
	if s.Pages != nil {
		mux.Handle("/", s.Pages)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Loopback && !web.IsLocal(r.Host) { // another site's page in a browser on this machine
			http.Error(w, "the host is not this machine", http.StatusForbidden)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askLimit)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	now := s.Now()
	switch behind := s.Follower.Behind(now); {
	case behind < 0:
		http.Error(w, "the pods are not listed yet, or their watch has ended", http.StatusServiceUnavailable)
	case now.Sub(time.Unix(0, s.saved.Load())) > storedIn:
		http.Error(w, "cannot store", http.StatusServiceUnavailable)
	default:
		_, _ = w.Write([]byte("ok\n"))
	}
}

// scope is the part of the verdicts that a question is about.
type scope struct {
	store.Filter
	now    time.Time
	name   string // of the window
	window time.Duration
}

// scopeOf returns the scope in a query. otherwise is the name of the window if the query has none.
func (s *Server) scopeOf(q url.Values, otherwise string) (c scope, err error) {
	c = scope{store.Filter{Namespace: q.Get("namespace"), Reason: q.Get("reason")}, s.Now(), cmp.Or(q.Get("window"), otherwise), 0}
	if nodes := q.Get("nodes"); nodes != "" {
		c.Nodes = strings.Split(nodes, ",")
	}
	var known bool
	switch c.window, known = sli.Windows()[c.name]; {
	case !known:
		err = badRequest("window: must be 5m, 1h, 1d or 7d")
	case len(c.Nodes) > maxNodes || len(c.Reason) > maxName:
		err = badRequest("nodes, reason: too many, or too long")
	}
	return c, err
}

func badRequest(reason string) error {
	return &web.Refusal{Status: http.StatusBadRequest, Reason: reason}
}

// handler answers the request of somebody.
type handler func(w http.ResponseWriter, r *http.Request, who web.Identity)

// answers serves the answer to a question.
func answers[T any](s *Server, ask func(context.Context, url.Values) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, _ web.Identity) {
		answer, err := ask(r.Context(), r.URL.Query())
		s.respond(w, r, answer, err)
	}
}

// respond writes an answer, or the error instead.
func (s *Server) respond(w http.ResponseWriter, r *http.Request, answer any, err error) {
	refusal, ok := errors.AsType[*web.Refusal](err)
	switch {
	case ok:
		refuse(w, refusal)
	case err != nil:
		s.Log.Error("answer a request failed", "path", r.URL.Path, "err", err)
		http.Error(w, "the answer failed", http.StatusInternalServerError)
	default:
		s.answer(w, answer)
	}
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // the client has gone
}

// Access decides who may read.
type Access interface {
	web.Authorizer
	// AuthorizeResource returns nil if somebody may use a verb on a resource of the core group in a namespace; empty: in all.
	AuthorizeResource(ctx context.Context, who web.Identity, verb, resource, namespace string) error
}

// guarded serves senders who are known, and whom may does not refuse.
func (s *Server) guarded(next handler, may func(*http.Request, web.Identity) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.Authenticate(r)
		refusal := web.RefusalOf(err, http.StatusUnauthorized)
		if refusal == nil {
			refusal = web.RefusalOf(may(r, who), http.StatusForbidden)
		}
		if refusal != nil {
			refuse(w, refusal)
			return
		}
		share.Identified(r)
		next(w, r, who)
	}
}

// MayRead returns nil if somebody may get the pods of a namespace; empty: of all namespaces.
func (s *Server) MayRead(ctx context.Context, who web.Identity, namespace string) error {
	if len(namespace) > maxName {
		return badRequest("namespace: too long")
	}
	return s.Access.AuthorizeResource(ctx, who, "get", "pods", namespace)
}

// anyone permits everyone who is known.
func anyone(*http.Request, web.Identity) error { return nil }

// ofPods permits those who may get the pods of the namespace in the path or the query; without one, of all namespaces.
func (s *Server) ofPods(r *http.Request, who web.Identity) error {
	return s.MayRead(r.Context(), who, cmp.Or(r.PathValue("namespace"), r.URL.Query().Get("namespace")))
}

// ofCluster permits those who may get the pods of all namespaces.
func (s *Server) ofCluster(r *http.Request, who web.Identity) error {
	return s.MayRead(r.Context(), who, "")
}

// ofPath permits those who may get the nonResourceURL of the request.
func (s *Server) ofPath(r *http.Request, who web.Identity) error {
	if refusal := web.Permit(r, s.Access, who, r.URL.Path); refusal != nil {
		return refusal
	}
	return nil
}

func refuse(w http.ResponseWriter, r *web.Refusal) {
	if r.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if r.RetryWithin > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryWithin.Seconds())))
	}
	http.Error(w, r.Reason, r.Status)
}

// signInCode creates a code that opens the pages: with the rights of the user who asks, or if the administrator asks, for
// a person who reads everything.
func (s *Server) signInCode(w http.ResponseWriter, r *http.Request, who web.Identity) {
	name, err := web.NameIn(r.URL.Query())
	of := web.Person{Name: who.Name, Cluster: who.Cluster, User: who.User}
	if who.Any {
		of.Name = cmp.Or(name, who.Name)
	}
	var code web.SignInCode
	switch {
	case err != nil:
	case s.SignIn == nil:
		err = &web.Refusal{Status: http.StatusNotFound, Reason: "there are no pages"}
	case !who.Any && who.User == nil:
		err = &web.Refusal{Status: http.StatusForbidden, Reason: "only the administrator and users of the cluster sign in with codes"}
	default:
		code, err = s.SignIn(r.Context(), of)
	}
	s.respond(w, r, code, err)
}
