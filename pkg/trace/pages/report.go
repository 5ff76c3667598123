package pages

import (
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type reportView struct {
	Filter        []web.Field
	Namespace     string
	Content       template.HTML
	Earlier, Mail template.URL // queries
}

func (p *pages) report(w http.ResponseWriter, r *http.Request, who web.Session) {
	if !p.permitted(w, r, who) {
		return
	}
	q := r.URL.Query()
	made, err := p.Report(r.Context(), q.Get("week"), q.Get("namespace"))
	var content template.HTML
	if err == nil {
		content, err = made.Page()
	}
	if err != nil {
		p.fails(w, r, err)
		return
	}
	asked := url.Values{"week": {made.Week}, "namespace": {made.Namespace}}
	before := report.WeekOf(made.From.Add(-24 * time.Hour))
	v := reportView{fields(r, "week"), made.Namespace, content, template.URL(web.With(asked, "week", before).Encode()), //nolint:gosec // encoded
		template.URL(web.With(asked, "format", "html").Encode())} //nolint:gosec // encoded
	p.Show(w, r, http.StatusOK, "report", web.View{Title: made.Title(), JSON: "/v1/report?" + asked.Encode(), Data: v})
}
