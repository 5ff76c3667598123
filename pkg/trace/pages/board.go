package pages

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/web"
)

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
	if v.Components, err = p.Components(r.Context(), nil); err == nil && p.MayRead(r.Context(), who.Identity(), namespace) == nil {
		for _, window := range []string{"5m", "1h", "1d"} {
			answer, failed := p.SLIs(r.Context(), url.Values{"window": {window}, "namespace": {namespace}})
			v.Windows, err = append(v.Windows, answer), cmp.Or(err, failed)
		}
		var failed error
		v.Failures, failed = p.Failures(r.Context(), url.Values{"namespace": {namespace}})
		err = cmp.Or(err, failed)
	}
	if err != nil {
		p.fails(w, r, err)
		return
	}
	p.Show(w, r, http.StatusOK, "board", web.View{Title: "Health of the cluster", JSON: "/v1/health", Data: v})
}

// page shows the answer to a question.
func page[T any](p *pages, name, title, json string, ask func(context.Context, url.Values) (T, error)) func(http.ResponseWriter, *http.Request, web.Session) {
	return func(w http.ResponseWriter, r *http.Request, _ web.Session) {
		answer, err := ask(r.Context(), nil)
		if err != nil {
			p.fails(w, r, err)
			return
		}
		p.Show(w, r, http.StatusOK, name, web.View{Title: title, JSON: json, Data: answer})
	}
}

// fails shows that there is no answer, and the reason if it is the request's.
func (p *pages) fails(w http.ResponseWriter, r *http.Request, err error) {
	if refusal, ok := errors.AsType[*web.Refusal](err); ok {
		p.Message(w, r, refusal.Status, refusal.Reason)
		return
	}
	p.log.Error("show a page failed", "path", r.URL.Path, "err", err)
	p.Message(w, r, http.StatusServiceUnavailable, "This cannot be read now: try again.")
}

// ofCluster shows a page to those who may get the pods of all namespaces.
func (p *pages) ofCluster(next func(http.ResponseWriter, *http.Request, web.Session)) func(http.ResponseWriter, *http.Request, web.Session) {
	return func(w http.ResponseWriter, r *http.Request, who web.Session) {
		if err := p.MayRead(r.Context(), who.Identity(), ""); err != nil {
			p.fails(w, r, web.RefusalOf(err, http.StatusForbidden))
			return
		}
		next(w, r, who)
	}
}
