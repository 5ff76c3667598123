package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

// newVerbs returns the verbs that query a running tracecenter.
func newVerbs(o *options) []*cobra.Command {
	weekly := verb[report.Report]{use: "weekly", short: "How was the week?",
		long: `How was the week? The last 7 days, or with --week a calendar week. -o html prints a document for an email. The exit code
is 1 if the budget of errors is spent, and 2 if it has too few samples.`,
		path: "/v1/report", flags: []string{"week", "namespace"},
		unknown: func(r *report.Report) bool { return r.Budget.Left == nil },
		problem: func(r *report.Report) bool { return *r.Budget.Left < 0 }}.command(o)
	reports := &cobra.Command{Use: "report", Short: "How was the week?", Args: cobra.NoArgs}
	reports.AddCommand(weekly)
	return []*cobra.Command{
		verb[api.Pod]{use: "pod NAMESPACE/NAME|UID", short: "What happened to a pod, and whose fault was it?", pathOf: podPath,
			problem: func(p *api.Pod) bool {
				return slices.ContainsFunc(p.Acts, func(a api.Act) bool { return a.Outcome == verdict.Missed })
			}}.command(o),
		verb[api.SLIs]{use: "slis", short: "How many deliveries are in time?", flags: []string{"window=5m", "namespace", "nodes"}}.command(o),
		verb[api.Failures]{use: "failures", short: "Why were deliveries late? The misses, grouped by reason",
			flags:   []string{"window=1h", "namespace", "nodes", "reason"},
			problem: func(f *api.Failures) bool { return f.Total > 0 }}.command(o),
		verb[[]follow.Terminating]{use: "terminating", short: "Which pods are Terminating for more than 10 minutes and their grace period?",
			problem: func(found *[]follow.Terminating) bool { return len(*found) > 0 }}.command(o),
		verb[health.State]{use: "health", short: "Is the cluster healthy, and are its components online?",
			more: func(cmd *cobra.Command) error {
				return o.ask(cmd, "/v1/components?window=1d", "components", &api.Components{})
			},
			unknown: func(h *health.State) bool { return h.Level == health.Unknown },
			problem: func(h *health.State) bool { return h.Level != health.Healthy }}.command(o),
		verb[api.Nodes]{use: "nodes", short: "Which nodes fail their pods, and how well does each deliver?",
			problem: func(n *api.Nodes) bool { return len(n.Mass)+len(n.Faults) > 0 }}.command(o),
		verb[api.Tenants]{use: "tenants", short: "Whose requests were throttled, and whose pods took the last capacity?",
			flags: []string{"window=1d", "namespace"}}.command(o),
		reports,
	}
}

func newLogin(o *options) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Print a code that opens the pages in a browser, once",
		Long: `Print the address of the pages, and a code that signs one person in, once, within ten minutes. With the program's own
token the person may read everything; with --token-file, what the token's user may get in the cluster.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.SignInCode
			return o.call(cmd, http.MethodPost, "/v1/sign-in-codes?name="+url.QueryEscape(name), &answer, func() error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s/login\ncode: %s (for one person, until %s)\n", o.Address(), plain(answer.Code),
					answer.Ends.Local().Format(time.TimeOnly))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the person who signs in")
	return cmd
}

const (
	askLimit = 30 * time.Second
	width    = 30 // columns of the waterfall
	few      = 8  // lines of a list in the report: -o json has all
)

// verbTexts has a template for each verb.
//
//go:embed verbs.txt
var verbTexts string

// ask sends a request to the server, and prints the answer by a template, or unchanged if JSON is wanted.
func (o *options) ask(cmd *cobra.Command, path, name string, answer any) error {
	return o.call(cmd, http.MethodGet, path, answer, func() error { return printText(cmd.OutOrStdout(), name, answer) })
}

// call sends a request to the server, and prints the answer, or unchanged if JSON is wanted.
func (o *options) call(cmd *cobra.Command, method, path string, answer any, show func() error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), askLimit)
	defer cancel()
	text, err := o.Decode(ctx, method, path, nil, answer)
	switch {
	case err != nil:
		return err
	case o.output != "json":
		return show()
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// copy prints the answer unchanged.
func (o *options) copy(cmd *cobra.Command, path string) error {
	response, err := o.Send(cmd.Context(), http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(response.Body, remote.MaxAnswer))
	return err
}

func printText(to io.Writer, name string, answer any) error {
	t, err := template.New("verbs").Funcs(functions()).Parse(verbTexts)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if err := t.ExecuteTemplate(w, name, answer); err != nil {
		return err
	}
	return w.Flush()
}

func functions() template.FuncMap {
	return template.FuncMap{
		"plain":   func(text any) string { return plain(fmt.Sprint(text)) },
		"moment":  func(t time.Time) string { return t.Format(time.RFC3339) },
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

// plain makes foreign text safe for one line of a terminal.
func plain(s string) string { return event.Plain(s) }

// bar draws a stage of an act that lasts until end.
func bar(b api.Bar, end float64) string {
	column := func(at float64) int { return min(width, max(0, int(at/end*width))) }
	from := min(column(b.From), width-1)
	to := max(from+1, column(b.From+b.Seconds))
	return strings.Repeat(" ", from) + strings.Repeat("#", to-from) + strings.Repeat(" ", width-to)
}

// verb is a command that prints the answer to one request, by the template of its name.
type verb[T any] struct {
	use, short, long string
	path             string                       // of the request; empty: /v1/ and its name
	pathOf           func(string) (string, error) // of the request about an argument; nil: the verb has none
	flags            []string                     // the parameters of the request, some with a default
	more             func(*cobra.Command) error   // prints more text after the answer; nil: there is none
	unknown, problem func(*T) bool                // of the answer, for the exit code; nil: never
}

// command returns the verb.
func (v verb[T]) command(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Args: cobra.NoArgs}
	if v.pathOf != nil {
		cmd.Args = cobra.ExactArgs(1)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		path := cmp.Or(v.path, "/v1/"+cmd.Name())
		if v.pathOf != nil {
			if path, err = v.pathOf(args[0]); err != nil {
				return err
			}
		}
		query := url.Values{}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" {
				query.Set(f.Name, f.Value.String())
			}
		})
		path += "?" + query.Encode()
		if o.output == "html" {
			return o.copy(cmd, path+"&format=html")
		}
		var answer T
		err = o.ask(cmd, path, cmd.Name(), &answer)
		if err == nil && v.more != nil && o.output != "json" {
			err = v.more(cmd)
		}
		switch {
		case err != nil:
		case v.unknown != nil && v.unknown(&answer):
			err = errCouldNotTell
		case v.problem != nil && v.problem(&answer):
			err = errProblems
		}
		return err
	}
	for _, flag := range v.flags {
		name, preset, _ := strings.Cut(flag, "=")
		cmd.Flags().String(name, preset, map[string]string{
			"window":    "5m, 1h, 1d or 7d",
			"namespace": "only pods of a namespace",
			"nodes":     "only pods of nodes, separated by commas",
			"reason":    "only misses with a reason",
			"week":      "an ISO week, as 2026-W48 (default: the last 7 days)",
		}[name])
	}
	return cmd
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
