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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
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
	Sender   *nodefault.Sender     // of faults of nodes, to an event center; nil: there is none
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
	mux.HandleFunc("GET /v1/versions", s.ofPath("/v1/versions", answers(s, s.Versions)))
	mux.HandleFunc("GET /v1/tenants", s.ofPods(answers(s, s.Tenants)))
	mux.HandleFunc("GET /v1/pods/{uid}", s.identified(s.byUID))
	mux.HandleFunc("GET /v1/pods/{namespace}/{name}", s.ofPods(s.byName))
	mux.HandleFunc("GET /v1/components", s.ofPath("/v1/components", answers(s, s.Components)))
	mux.HandleFunc("GET /v1/health", s.ofPath("/v1/health", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.Health()) }))
	mux.HandleFunc("GET /v1/nodes", s.ofCluster(answers(s, s.Nodes)))
	mux.HandleFunc("GET /v1/avoid", s.ofPath("/v1/avoid", answers(s, s.Avoid)))
	mux.HandleFunc("GET /metrics", s.ofPath("/metrics", s.metrics().ServeHTTP))
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

// SLIs is the response about indicators.
type SLIs struct {
	AsOf   time.Time       `json:"asof"`
	Window string          `json:"window"`
	Lag    float64         `json:"lagSeconds"` // delay of the watch; -1: not running
	SLIs   []sli.Indicator `json:"slis"`
}

// SLIs returns the indicators of a window, a namespace and nodes.
func (s *Server) SLIs(ctx context.Context, q url.Values) (SLIs, error) {
	now := s.Now()
	answer := SLIs{AsOf: now, Lag: s.lag(now)}
	name, window, err := windowOf(q, "5m")
	if err != nil {
		return answer, err
	}
	filter, err := filterOf(q)
	if err != nil {
		return answer, err
	}
	counts, err := s.Store.Count(ctx, now, window, filter)
	answer.Window, answer.SLIs = name, sli.Add(counts)
	return answer, err
}

// windowOf returns the window that a query names.
func windowOf(q url.Values, otherwise string) (name string, window time.Duration, err error) {
	name = cmp.Or(q.Get("window"), otherwise)
	window, ok := sli.Windows()[name]
	if !ok {
		err = badRequest("window: must be 5m, 1h, 1d or 7d")
	}
	return name, window, err
}

// filterOf returns the filter in a query.
func filterOf(q url.Values) (filter store.Filter, err error) {
	filter = store.Filter{Namespace: q.Get("namespace"), Reason: q.Get("reason")}
	if nodes := q.Get("nodes"); nodes != "" {
		filter.Nodes = strings.Split(nodes, ",")
	}
	if len(filter.Nodes) > maxNodes || max(len(filter.Namespace), len(filter.Reason)) > maxName {
		err = badRequest("nodes, namespace, reason: too many, or too long")
	}
	return filter, err
}

func badRequest(reason string) error {
	return &web.Refusal{Status: http.StatusBadRequest, Reason: reason}
}

func (s *Server) lag(now time.Time) float64 {
	behind := s.Follower.Behind(now)
	if behind < 0 {
		return -1
	}
	return behind.Seconds()
}

// Terminating returns the leftover pods of a namespace; without one, of all.
func (s *Server) Terminating(_ context.Context, q url.Values) ([]follow.Terminating, error) {
	namespace := q.Get("namespace")
	return slices.DeleteFunc(append([]follow.Terminating{}, s.Follower.Terminating(s.Now(), leftover)...), func(t follow.Terminating) bool {
		return namespace != "" && t.Namespace != namespace
	}), nil
}

func (s *Server) byName(w http.ResponseWriter, r *http.Request) {
	pod, err := s.Pod(r.Context(), "", r.PathValue("namespace"), r.PathValue("name"))
	s.answerPod(w, r, pod, err)
}

// byUID answers about the pod of a UID. To somebody without a right to its namespace, it is unknown.
func (s *Server) byUID(w http.ResponseWriter, r *http.Request, who web.Identity) {
	pod, err := s.Pod(r.Context(), r.PathValue("uid"), "", "")
	if err == nil && len(pod.Acts) > 0 && s.MayRead(r.Context(), who, pod.Acts[0].Namespace) != nil {
		pod = Pod{}
	}
	s.answerPod(w, r, pod, err)
}

// Pod returns the acts of a pod, by UID or by namespace and name; none if it is unknown.
func (s *Server) Pod(ctx context.Context, uid, namespace, name string) (Pod, error) {
	if max(len(uid), len(namespace), len(name)) > maxName {
		return Pod{}, badRequest("the name is too long")
	}
	acts := s.Follower.Find(uid, namespace, name)
	rows, err := s.Store.Find(ctx, uid, namespace, name)
	if err != nil {
		return Pod{}, err
	}
	return merge(rows, acts, s.Now()), nil
}

func (s *Server) answerPod(w http.ResponseWriter, r *http.Request, pod Pod, err error) {
	if err == nil && len(pod.Acts) == 0 {
		err = &web.Refusal{Status: http.StatusNotFound, Reason: "no act of such a pod is known"}
	}
	s.respond(w, r, pod, err)
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
