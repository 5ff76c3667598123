package pages

import (
	"net/http"
	"net/url"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type terminatingView struct {
	Pods   []follow.Terminating
	Filter []web.Field
}

// boardView is the first page. Health and components name no pods; the rest needs a right.
type boardView struct {
	Health     health.State
	Components api.Components
	Windows    []api.SLIs // nil: the person may not read all pods
	Failures   api.Failures
	Namespace  string
	Filter     []web.Field
}

func (p *pages) board(w http.ResponseWriter, r *http.Request, who web.Session) {
	namespace := r.URL.Query().Get("namespace")
	v := boardView{Health: p.Health(), Namespace: namespace, Filter: fields(r)}
	var err error
	if v.Components, err = p.Components(r.Context(), "1d"); err != nil {
		p.log.Error("count probes failed", "err", err)
	}
	if p.MayRead(r.Context(), who.Identity(), namespace) == nil {
		for _, window := range []string{"5m", "1h", "1d"} {
			answer, ok := p.SLIs(w, asking(r, window, namespace))
			if !ok {
				return
			}
			v.Windows = append(v.Windows, answer)
		}
		var ok bool
		if v.Failures, ok = p.Failures(w, asking(r, "1h", namespace)); !ok {
			return
		}
	}
	p.Show(w, r, http.StatusOK, "board", web.View{Title: "Health of the cluster", JSON: "/v1/health", Data: v})
}

// asking returns a request for one window and namespace.
func asking(r *http.Request, window, namespace string) *http.Request {
	of := r.Clone(r.Context())
	of.URL.RawQuery = url.Values{"window": {window}, "namespace": {namespace}}.Encode()
	return of
}

func (p *pages) versions(w http.ResponseWriter, r *http.Request, _ web.Session) {
	answer, err := p.Versions(r.Context())
	if err != nil {
		p.log.Error("compare versions failed", "err", err)
		p.Message(w, r, http.StatusServiceUnavailable, "The versions cannot be compared now: try again.")
		return
	}
	p.Show(w, r, http.StatusOK, "versions", web.View{Title: "Versions", JSON: "/v1/versions", Data: answer})
}

func (p *pages) nodes(w http.ResponseWriter, r *http.Request, who web.Session) {
	if err := p.MayRead(r.Context(), who.Identity(), ""); err != nil {
		refusal := web.RefusalOf(err, http.StatusForbidden)
		p.Message(w, r, refusal.Status, refusal.Reason)
		return
	}
	answer, err := p.Nodes(r.Context())
	if err != nil {
		p.log.Error("count the acts of nodes failed", "err", err)
		p.Message(w, r, http.StatusServiceUnavailable, "The acts of the nodes cannot be counted now: try again.")
		return
	}
	p.Show(w, r, http.StatusOK, "nodes", web.View{Title: "Nodes", JSON: "/v1/nodes", Data: answer})
}

func (p *pages) components(w http.ResponseWriter, r *http.Request, _ web.Session) {
	answer, err := p.Components(r.Context(), "1d")
	if err != nil {
		p.log.Error("count probes failed", "err", err)
		p.Message(w, r, http.StatusServiceUnavailable, "The probes cannot be read now: try again.")
		return
	}
	p.Show(w, r, http.StatusOK, "components", web.View{Title: "Components online", JSON: "/v1/components?window=1d", Data: answer})
}
