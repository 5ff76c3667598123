package pages

import (
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
)

// functions are the template functions.
var functions = template.FuncMap{
	"ago":   ago,
	"lag":   func(now time.Time, s deliver.Status) string { return ago(now, seconds(now, s.LagSeconds)) },
	"at":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"plain": event.Plain,
	"nodes": report.Nodes,
	"node": func(cluster, node string) string {
		return "/nodes/" + url.PathEscape(cluster) + "/" + url.PathEscape(node)
	},
	"muted":    func(n *model.Note, now time.Time) bool { return n.Muted(now) },
	"more":     func(q url.Values, before string) string { return "?" + with(q, "before", before).Encode() },
	"groupsAt": func(groups []group, now time.Time) groupsAt { return groupsAt{groups, now} },
	"peopleOf": func(n *model.Note, now time.Time) people { return people{n, n.Muted(now)} },
	"sayOf":    sayOf,
	"declare": func(cluster, node, form, next string) saying {
		return saying{url.Values{"cluster": {cluster}, "node": {node}}, form, next}
	},
	"sayFault": func(f model.NodeFault, form, next string) saying {
		return sayOf(url.Values{"cluster": {f.Cluster}, "node": {f.Node}, "check": {f.Check},
			"detector": {f.Detector}}, f.Subject.Kind, f.Subject.Name,
			form, next)
	},
	"percent": func(part, all int) string {
		if all == 0 {
			return "0"
		}
		return fmt.Sprintf("%.1f", 100*float64(part)/float64(all))
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
	"few": func(names []string) string {
		const most = 3
		if len(names) <= most {
			return strings.Join(names, ", ")
		}
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
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

// saying is a form for a person's action on faults.
type saying struct {
	Fault      url.Values // the selected ones
	Form, Next string
}

// sayOf returns the form for the faults that a filter selects, of one subject if it is given.
func sayOf(q url.Values, kind, name, form, next string) saying {
	about := url.Values{}
	for _, field := range faultFields(q) {
		about.Set(field.Name, field.Value)
	}
	about.Set("kind", kind)
	about.Set("name", name)
	return saying{about, form, next}
}

func with(q url.Values, name, value string) url.Values {
	changed := url.Values{}
	for k, v := range q {
		changed[k] = v
	}
	changed.Set(name, value)
	return changed
}

// ago returns the time from a moment to now.
func ago(now, at time.Time) string {
	d := now.Sub(at)
	switch {
	case at.IsZero():
		return "never"
	case d < 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}
