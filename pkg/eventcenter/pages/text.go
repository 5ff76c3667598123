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
	"few":   func(names []string) string { return finding.JoinFirst(names, 3) },
	"muted": func(n *model.Note, now time.Time) bool { return n.Muted(now) },
	"more": func(q url.Values, before uint64) string {
		return "?" + web.With(q, "before", fmt.Sprint(before)).Encode()
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
