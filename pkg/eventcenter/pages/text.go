package pages

import (
	"fmt"
	"html/template"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// functions are the template functions beside those of package web.
var functions = template.FuncMap{
	"lag":   func(now time.Time, s deliver.Status) string { return web.Ago(now, seconds(now, s.LagSeconds)) },
	"nodes": report.Nodes,
	"node": func(cluster, node string) string {
		return "/nodes/" + url.PathEscape(cluster) + "/" + url.PathEscape(node)
	},
	"few":      func(names []string) string { return finding.JoinFirst(names, 3) },
	"muted":    func(n *model.Note, now time.Time) bool { return n.Muted(now) },
	"more":     func(q url.Values, before string) string { return "?" + web.With(q, "before", before).Encode() },
	"groupsAt": func(groups []group, now time.Time) data { return data{"Groups": groups, "Now": now} },
	"peopleOf": func(n *model.Note, now time.Time) data { return data{"Note": n, "Muted": n.Muted(now)} },
	"sayOf":    actionFormOf,
	"declare": func(cluster, node, form, next string) data {
		return data{"Fault": url.Values{"cluster": {cluster}, "node": {node}}, "Form": form, "Next": next}
	},
	"sayFault": func(f model.NodeFault, form, next string) data {
		return actionFormOf(url.Values{"cluster": {f.Cluster}, "node": {f.Node}, "check": {f.Check},
			"detector": {f.Detector}}, f.Subject.Kind, f.Subject.Name,
			form, next)
	},
	"clock": func(ahead float64) string {
		switch d := time.Duration(ahead) * time.Second; {
		case d > 0:
			return fmt.Sprintf("its clock is %s ahead", d)
		case d < 0:
			return fmt.Sprintf("its clock is %s behind", -d)
		}
		return ""
	},
}

// actionFormOf returns the form for the faults that a filter selects, of one subject if it is given.
func actionFormOf(q url.Values, kind, name, form, next string) data {
	about := url.Values{}
	for _, field := range faultFields(q) {
		about.Set(field.Name, field.Value)
	}
	about.Set("kind", kind)
	about.Set("name", name)
	return data{"Fault": about, "Form": form, "Next": next}
}
