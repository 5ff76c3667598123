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
	"groupsAt": func(groups []group, now time.Time) groupsAt { return groupsAt{groups, now} },
	"peopleOf": func(n *model.Note, now time.Time) people { return people{n, n.Muted(now)} },
	"sayOf":    actionFormOf,
	"declare": func(cluster, node, form, next string) actionForm {
		return actionForm{url.Values{"cluster": {cluster}, "node": {node}}, form, next}
	},
	"sayFault": func(f model.NodeFault, form, next string) actionForm {
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

type groupsAt struct {
	Groups []group
	Now    time.Time
}

type people struct {
	Note  *model.Note
	Muted bool
}

// actionForm is a form for a person's action on faults.
type actionForm struct {
	Fault      url.Values // the selected ones
	Form, Next string
}

// actionFormOf returns the form for the faults that a filter selects, of one subject if it is given.
func actionFormOf(q url.Values, kind, name, form, next string) actionForm {
	about := url.Values{}
	for _, field := range faultFields(q) {
		about.Set(field.Name, field.Value)
	}
	about.Set("kind", kind)
	about.Set("name", name)
	return actionForm{about, form, next}
}
