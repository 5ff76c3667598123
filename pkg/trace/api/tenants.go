package api

import (
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/tenant"
)

const maxTook = 50 // namespaces of one response

// Tenants is the response about tenants: whose requests the apiservers throttled, and whose pods took the last capacity.
type Tenants struct {
	AsOf      time.Time       `json:"asof"`
	Window    string          `json:"window"`
	Requests  []Requests      `json:"requests"`  // by FlowSchema; without a namespace only
	Exhausted int             `json:"exhausted"` // creations missed because no node had room
	Took      []report.Placed `json:"took"`      // the pods placed in the hours of these misses, and in the hour before
}

// Requests are the requests of a FlowSchema.
type Requests struct {
	FlowSchema string   `json:"flowSchema"`
	Served     int      `json:"served"`    // within a second
	Throttled  int      `json:"throttled"` // rejected, or held for longer
	Share      *float64 `json:"share"`     // of served ones; null if there are too few
}

func (s *Server) getTenants(w http.ResponseWriter, r *http.Request) {
	if answer, ok := s.Tenants(w, r); ok {
		s.answer(w, answer)
	}
}

// Tenants returns the tenants that a request asks for. It answers the request itself if it cannot.
func (s *Server) Tenants(w http.ResponseWriter, r *http.Request) (answer Tenants, ok bool) {
	name, window, ok := windowOf(w, r, "1d")
	if !ok {
		return answer, false
	}
	now, namespace := s.Now(), r.URL.Query().Get("namespace")
	answer = Tenants{AsOf: now, Window: name, Requests: []Requests{}, Took: []report.Placed{}}
	counts, err := s.Store.Probes(r.Context(), now, window)
	if err != nil {
		s.fail(w, "count requests", err)
		return answer, false
	}
	for _, c := range counts {
		if c.Component == tenant.Component && namespace == "" {
			answer.Requests = append(answer.Requests, Requests{c.Instance, c.Good, c.Bad, sli.Ratio(c.Good, c.Good+c.Bad)})
		}
	}
	misses, took, err := s.Store.LastCapacity(r.Context(), now, window, namespace)
	if err != nil {
		s.fail(w, "add up requests of pods", err)
		return answer, false
	}
	answer.Exhausted, answer.Took = misses, append(answer.Took, took[:min(len(took), maxTook)]...)
	return answer, true
}
