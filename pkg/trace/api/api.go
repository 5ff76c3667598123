// Package api serves verdicts over HTTP. It is read-only. Who may get the pods of a namespace may read their verdicts.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
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
	mux.HandleFunc("GET /v1/slis", s.ofPods(s.slis))
	mux.HandleFunc("GET /v1/failures", s.ofPods(s.getFailures))
	mux.HandleFunc("GET /v1/report", s.ofPods(s.getReport))
	mux.HandleFunc("GET /v1/terminating", s.ofPods(s.terminating))
	mux.HandleFunc("GET /v1/versions", s.ofPath("/v1/versions", s.getVersions))
	mux.HandleFunc("GET /v1/tenants", s.ofPods(s.getTenants))
	mux.HandleFunc("GET /v1/pods/{uid}", s.identified(s.byUID))
	mux.HandleFunc("GET /v1/pods/{namespace}/{name}", s.ofPods(s.byName))
	mux.HandleFunc("GET /v1/components", s.ofPath("/v1/components", s.getComponents))
	mux.HandleFunc("GET /v1/health", s.ofPath("/v1/health", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.Health()) }))
	mux.HandleFunc("GET /v1/nodes", s.ofCluster(s.getNodes))
	mux.HandleFunc("GET /v1/avoid", s.ofPath("/v1/avoid", s.getAvoid))
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

func (s *Server) slis(w http.ResponseWriter, r *http.Request) {
	if answer, ok := s.SLIs(w, r); ok {
		s.answer(w, answer)
	}
}

// SLIs returns the indicators that a request asks for. It answers the request itself if it cannot.
func (s *Server) SLIs(w http.ResponseWriter, r *http.Request) (answer SLIs, ok bool) {
	name, window, ok := windowOf(w, r, "5m")
	if !ok {
		return answer, false
	}
	filter, ok := filterOf(w, r)
	if !ok {
		return answer, false
	}
	now := s.Now()
	counts, err := s.Store.Count(r.Context(), now, window, filter)
	if err != nil {
		s.fail(w, "count verdicts", err)
		return answer, false
	}
	return SLIs{AsOf: now, Window: name, Lag: s.lag(now), SLIs: sli.Add(counts)}, true
}

// windowOf returns the window that a request names. It refuses an unknown one.
func windowOf(w http.ResponseWriter, r *http.Request, otherwise string) (name string, window time.Duration, ok bool) {
	if name = r.URL.Query().Get("window"); name == "" {
		name = otherwise
	}
	if window, ok = sli.Windows()[name]; !ok {
		http.Error(w, "window: must be 5m, 1h, 1d or 7d", http.StatusBadRequest)
	}
	return name, window, ok
}

// filterOf returns the filter in a request. It refuses a too large one.
func filterOf(w http.ResponseWriter, r *http.Request) (filter store.Filter, ok bool) {
	q := r.URL.Query()
	filter = store.Filter{Namespace: q.Get("namespace"), Reason: q.Get("reason")}
	if nodes := q.Get("nodes"); nodes != "" {
		filter.Nodes = strings.Split(nodes, ",")
	}
	if len(filter.Nodes) > maxNodes || max(len(filter.Namespace), len(filter.Reason)) > maxName {
		http.Error(w, "nodes, namespace, reason: too many, or too long", http.StatusBadRequest)
		return filter, false
	}
	return filter, true
}

func (s *Server) lag(now time.Time) float64 {
	behind := s.Follower.Behind(now)
	if behind < 0 {
		return -1
	}
	return behind.Seconds()
}

func (s *Server) terminating(w http.ResponseWriter, r *http.Request) {
	s.answer(w, s.Terminating(r.URL.Query().Get("namespace")))
}

// Terminating returns the leftover pods of a namespace; empty: of all.
func (s *Server) Terminating(namespace string) []follow.Terminating {
	found := []follow.Terminating{}
	for _, t := range s.Follower.Terminating(s.Now(), leftover) {
		if namespace == "" || t.Namespace == namespace {
			found = append(found, t)
		}
	}
	return found
}

func (s *Server) byName(w http.ResponseWriter, r *http.Request) {
	s.pod(w, r, "", r.PathValue("namespace"), r.PathValue("name"))
}

// byUID answers about the pod of a UID. To somebody without a right to its namespace, it is unknown.
func (s *Server) byUID(w http.ResponseWriter, r *http.Request, who web.Identity) {
	pod, err := s.Pod(r.Context(), r.PathValue("uid"), "", "")
	if err == nil && len(pod.Acts) > 0 && s.MayRead(r.Context(), who, pod.Acts[0].Namespace) != nil {
		pod = Pod{}
	}
	s.answerPod(w, pod, err)
}

func (s *Server) pod(w http.ResponseWriter, r *http.Request, uid, namespace, name string) {
	pod, err := s.Pod(r.Context(), uid, namespace, name)
	s.answerPod(w, pod, err)
}

// Pod returns the acts of a pod, by UID or by namespace and name; none if it is unknown.
func (s *Server) Pod(ctx context.Context, uid, namespace, name string) (Pod, error) {
	if max(len(uid), len(namespace), len(name)) > maxName {
		return Pod{}, errLong
	}
	acts := s.Follower.Find(uid, namespace, name)
	rows, err := s.Store.Find(ctx, uid, namespace, name)
	if err != nil {
		return Pod{}, err
	}
	return merge(rows, acts, s.Now()), nil
}

var errLong = errors.New("the name is too long")

func (s *Server) answerPod(w http.ResponseWriter, pod Pod, err error) {
	switch {
	case errors.Is(err, errLong):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		s.fail(w, "find verdicts", err)
	case len(pod.Acts) == 0:
		http.Error(w, "no act of such a pod is known", http.StatusNotFound)
	default:
		s.answer(w, pod)
	}
}

func (s *Server) fail(w http.ResponseWriter, what string, err error) {
	s.Log.Error(what+" failed", "err", err)
	http.Error(w, what+" failed", http.StatusInternalServerError)
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // the client has gone
}
