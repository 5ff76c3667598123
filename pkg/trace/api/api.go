// Package api serves verdicts over HTTP, on loopback: everyone on the machine may ask. It is read-only.
package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

const (
	askLimit = 30 * time.Second
	maxName  = 253 // bytes of a name
	maxNodes = 1000
	leftover = 10 * time.Minute // a pod Terminating longer than this plus its grace period is a leftover
	storedIn = 30 * time.Second // not ready if no batch was stored for this long
)

// Server answers requests.
type Server struct {
	Follower *follow.Follower
	Store    *store.Store
	Log      *slog.Logger
	Now      func() time.Time

	saved atomic.Int64 // when the last batch was stored, in Unix ns
}

// Saved records that a batch was stored.
func (s *Server) Saved(at time.Time) { s.saved.Store(at.UnixNano()) }

// Handler returns the interface.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /v1/slis", s.slis)
	mux.HandleFunc("GET /v1/terminating", s.terminating)
	mux.HandleFunc("GET /v1/pods/{uid}", s.pod)
	mux.HandleFunc("GET /v1/pods/{namespace}/{name}", s.pod)
	mux.Handle("GET /metrics", s.metrics())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) { // another site's page in a browser on this machine
			http.Error(w, "the host is not this machine", http.StatusForbidden)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askLimit)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
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
	q := r.URL.Query()
	name := q.Get("window")
	if name == "" {
		name = "5m"
	}
	window, ok := sli.Windows()[name]
	filter := store.Filter{Namespace: q.Get("namespace")}
	if nodes := q.Get("nodes"); nodes != "" {
		filter.Nodes = strings.Split(nodes, ",")
	}
	switch {
	case !ok:
		http.Error(w, "window: must be 5m, 1h, 1d or 7d", http.StatusBadRequest)
		return
	case len(filter.Nodes) > maxNodes || len(filter.Namespace) > maxName:
		http.Error(w, "nodes, namespace: too many, or too long", http.StatusBadRequest)
		return
	}
	now := s.Now()
	counts, err := s.Store.Count(r.Context(), now, window, filter)
	if err != nil {
		s.fail(w, "count verdicts", err)
		return
	}
	s.answer(w, SLIs{AsOf: now, Window: name, Lag: s.lag(now), SLIs: sli.Add(counts)})
}

func (s *Server) lag(now time.Time) float64 {
	behind := s.Follower.Behind(now)
	if behind < 0 {
		return -1
	}
	return behind.Seconds()
}

func (s *Server) terminating(w http.ResponseWriter, _ *http.Request) {
	found := s.Follower.Terminating(s.Now(), leftover)
	if found == nil {
		found = []follow.Terminating{}
	}
	s.answer(w, found)
}

func (s *Server) pod(w http.ResponseWriter, r *http.Request) {
	uid, namespace, name := r.PathValue("uid"), r.PathValue("namespace"), r.PathValue("name")
	if max(len(uid), len(namespace), len(name)) > maxName {
		http.Error(w, "the name is too long", http.StatusBadRequest)
		return
	}
	acts := s.Follower.Find(uid, namespace, name)
	rows, err := s.Store.Find(r.Context(), uid, namespace, name)
	if err != nil {
		s.fail(w, "find verdicts", err)
		return
	}
	pod := merge(rows, acts, s.Now())
	if len(pod.Acts) == 0 {
		http.Error(w, "no act of such a pod is known", http.StatusNotFound)
		return
	}
	s.answer(w, pod)
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
