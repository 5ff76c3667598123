package api

import (
	"context"
	"net/url"
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

// Tenants returns the tenants of a window, and of a namespace.
func (s *Server) Tenants(ctx context.Context, q url.Values) (Tenants, error) {
	now, namespace := s.Now(), q.Get("namespace")
	name, window, err := windowOf(q, "1d")
	answer := Tenants{AsOf: now, Window: name, Requests: []Requests{}, Took: []report.Placed{}}
	if err != nil {
		return answer, err
	}
	counts, err := s.Store.Probes(ctx, now, window)
	if err != nil {
		return answer, err
	}
	for _, c := range counts {
		if c.Component == tenant.Component && namespace == "" {
			answer.Requests = append(answer.Requests, Requests{c.Instance, c.Good, c.Bad, sli.Ratio(c.Good, c.Good+c.Bad)})
		}
	}
	misses, took, err := s.Store.LastCapacity(ctx, now, window, namespace)
	answer.Exhausted, answer.Took = misses, append(answer.Took, took[:min(len(took), maxTook)]...)
	return answer, err
}
