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
)

const (
	askLimit  = 30 * time.Second
	maxName   = 253 // bytes of a name
	maxNodes  = 1000
	leftover  = 10 * time.Minute // a pod Terminating longer than this plus its grace period is a leftover
	blindFrom = 30 * time.Second // a watch further behind cannot see the cluster
	storedIn  = 30 * time.Second // not ready if no batch was stored for this long
)

// Server answers requests. Its exported fields are set before the first request.
type Server struct {
	Follower *follow.Follower
	Store    *store.Store
	Prober   *probe.Prober
	Alerts   func() []health.Alert // firing ones; nil: none are known
	Sender   *messages.Sender      // of faults of nodes, to an event center; nil: there is none
	Access   Access
	SignIn   func(context.Context, web.Person) (code string, ends time.Time, err error) // nil: there are no pages
	Pages    http.Handler                                                               // nil: there are none
	Loopback bool                                                                       // it listens on loopback only
	Log      *slog.Logger
	Now      func() time.Time

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
	mux.HandleFunc("GET /v1/slis", s.ofPods(answers(s, s.SLIs)))
	mux.HandleFunc("GET /v1/failures", s.ofPods(answers(s, s.Failures)))
	mux.HandleFunc("GET /v1/report", s.ofPods(s.getReport))
	mux.HandleFunc("GET /v1/terminating", s.ofPods(answers(s, s.Terminating)))
	mux.HandleFunc("GET /v1/versions", s.ofPath(answers(s, s.Versions)))
	mux.HandleFunc("GET /v1/tenants", s.ofPods(answers(s, s.Tenants)))
	mux.HandleFunc("GET /v1/pods/{uid}", s.identified(s.byUID))
	mux.HandleFunc("GET /v1/pods/{namespace}/{name}", s.ofPods(s.byName))
	mux.HandleFunc("GET /v1/components", s.ofPath(answers(s, s.Components)))
	mux.HandleFunc("GET /v1/health", s.ofPath(func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.Health()) }))
	mux.HandleFunc("GET /v1/nodes", s.ofCluster(answers(s, s.Nodes)))
	mux.HandleFunc("GET /v1/avoid", s.ofPath(answers(s, s.Avoid)))
	mux.HandleFunc("GET /metrics", s.ofPath(s.metrics().ServeHTTP))
	mux.HandleFunc("POST /v1/sign-in-codes", s.identified(s.signInCode))
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
	known := false
	switch c.window, known = sli.Windows()[c.name]; {
	case !known:
		err = badRequest("window: must be 5m, 1h, 1d or 7d")
	case len(c.Nodes) > maxNodes || max(len(c.Namespace), len(c.Reason)) > maxName:
		err = badRequest("nodes, namespace, reason: too many, or too long")
	}
	return c, err
}

func badRequest(reason string) error {
	return &web.Refusal{Status: http.StatusBadRequest, Reason: reason}
}

// answers serves the answer to a question.
func answers[T any](s *Server, ask func(context.Context, url.Values) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
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
