package main

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// newVerbs returns the verbs that query a running tracecenter.
func newVerbs(o *command.Asker) []*cobra.Command {
	weekly := command.Verb[report.Report]{Use: "weekly", Short: "How was the week?",
		Long: `How was the week? The last 7 days, or with --week a calendar week. -o html prints a document for an email. The exit code
is 1 if the budget of errors is spent, and 2 if it has too few samples.`,
		Path: "/v1/report", Formats: "text json html", Flags: parameters("week", "namespace"),
		Unknown: func(r *report.Report) bool { return r.Budget.Left == nil },
		Problem: func(r *report.Report) bool { return *r.Budget.Left < 0 }}.Command(o)
	reports := &cobra.Command{Use: "report", Short: "How was the week?", Args: cobra.NoArgs}
	reports.AddCommand(weekly)
	return []*cobra.Command{
		command.Verb[api.Pod]{Use: "pod NAMESPACE/NAME|UID", Short: "What happened to a pod, and whose fault was it?", PathOf: podPath,
			Problem: func(p *api.Pod) bool {
				return slices.ContainsFunc(p.Acts, func(a api.Act) bool { return a.Outcome == verdict.Missed })
			}}.Command(o),
		command.Verb[api.SLIs]{Use: "slis", Short: "How many deliveries are in time?",
			Flags: parameters("window=5m", "namespace", "nodes")}.Command(o),
		command.Verb[api.Failures]{Use: "failures", Short: "Why were deliveries late? The misses, grouped by reason",
			Flags:   parameters("window=1h", "namespace", "nodes", "reason"),
			Problem: func(f *api.Failures) bool { return f.Total > 0 }}.Command(o),
		command.Verb[[]follow.Terminating]{Use: "terminating", Short: "Which pods are Terminating for more than 10 minutes and their grace period?",
			Problem: func(found *[]follow.Terminating) bool { return len(*found) > 0 }}.Command(o),
		command.Verb[health.State]{Use: "health", Short: "Is the cluster healthy, and are its components online?",
			More: func(cmd *cobra.Command) error {
				return o.Show(cmd, http.MethodGet, "/v1/components?window=1d", nil, "components", &api.Components{})
			},
			Unknown: func(h *health.State) bool { return h.Level == health.Unknown },
			Problem: func(h *health.State) bool { return h.Level != health.Healthy }}.Command(o),
		command.Verb[api.Nodes]{Use: "nodes", Short: "Which nodes fail their pods, and how well does each deliver?",
			Problem: func(n *api.Nodes) bool { return len(n.Mass)+len(n.Faults) > 0 }}.Command(o),
		command.Verb[api.Tenants]{Use: "tenants", Short: "Whose requests were throttled, and whose pods took the last capacity?",
			Flags: parameters("window=1d", "namespace")}.Command(o),
		reports,
		o.Login(`Print the address of the pages, and a code that signs one person in, once, within ten minutes. With the program's own
token the person may read everything; with --token-file, what the token's user may get in the cluster.`, "", func(url.Values) {}),
	}
}

const (
	width = 30 // columns of the waterfall
	few   = 8  // lines of a list in the report: -o json has all
)

// verbTexts has a template for each verb.
//
//go:embed verbs.txt
var verbTexts string

func functions() template.FuncMap {
	return template.FuncMap{
		"minute":  func(t time.Time) string { return t.Format("2006-01-02 15:04 MST") },
		"seconds": func(d time.Duration) time.Duration { return d.Round(time.Second) },
		"percent": report.Percent,
		"time":    report.Seconds,
		"stage":   stage.Describe,
		"days":    func() int { return report.Days },
		"few":     func() int { return few },
		"bar":     bar,
	}
}

// bar draws a stage of an act that lasts until end.
func bar(b api.Bar, end float64) string {
	column := func(at float64) int { return min(width, max(0, int(at/end*width))) }
	from := min(column(b.From), width-1)
	to := max(from+1, column(b.From+b.Seconds))
	return strings.Repeat(" ", from) + strings.Repeat("#", to-from) + strings.Repeat(" ", width-to)
}

// parameters returns what adds flags for parameters of a request, some with a default.
func parameters(named ...string) func(*pflag.FlagSet) {
	return func(flags *pflag.FlagSet) {
		for _, one := range named {
			name, preset, _ := strings.Cut(one, "=")
			flags.String(name, preset, map[string]string{
				"window":    "5m, 1h, 1d or 7d",
				"namespace": "only pods of a namespace",
				"nodes":     "only pods of nodes, separated by commas",
				"reason":    "only misses with a reason",
				"week":      "an ISO week, as 2026-W48 (default: the last 7 days)",
			}[name])
		}
	}
}

// podPath returns the path of NAMESPACE/NAME or a UID.
func podPath(pod string) (string, error) {
	var parts []string
	for part := range strings.SplitSeq(pod, "/") {
		parts = append(parts, url.PathEscape(part))
	}
	if len(parts) > 2 || slices.Contains(parts, "") {
		return "", fmt.Errorf("%q: must be NAMESPACE/NAME or a UID", pod)
	}
	return "/v1/pods/" + strings.Join(parts, "/"), nil
}
