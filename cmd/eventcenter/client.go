package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const askLimit = 30 * time.Second

// remote is the center to query.
func (o *options) remote() *client.Client {
	return &client.Client{Dir: o.directory(), Server: o.server, Default: "http://" + defaultListen, CA: o.ca}
}

// ask sends a request and decodes the response; text is the response unchanged.
func (o *options) ask(ctx context.Context, method, path string, body io.Reader, answer any) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return o.remote().Decode(ctx, method, path, body, answer)
}

// show prints the answer to a GET request by the template of this name, and reports problems that the answer shows.
func show[T any](o *options, cmd *cobra.Command, path, name string, problems func(answer T) bool) error {
	var answer T
	text, err := o.ask(cmd.Context(), http.MethodGet, path, nil, &answer)
	if err != nil {
		return err
	}
	return problemsOf(problems(answer), o.print(cmd, name, answer, text))
}

// do requests a change, and prints the result.
func (o *options) do(cmd *cobra.Command, method, path string, body io.Reader) error {
	var answer struct{ Done string }
	text, err := o.ask(cmd.Context(), method, path, body, &answer)
	if err != nil {
		return err
	}
	return o.print(cmd, "done", answer, text)
}

// verbTexts has the text of each answer. Text from senders must pass through a function that makes it plain: it cannot
// control the terminal.
//
//go:embed verbs.txt
var verbTexts string

// print prints a result: with -o json as JSON, which is text if the center has sent it, else by a template.
func (o *options) print(cmd *cobra.Command, name string, result any, text []byte) error {
	out := cmd.OutOrStdout()
	if o.json() && text != nil {
		_, err := out.Write(text)
		return err
	}
	if o.json() {
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(result)
	}
	t, err := template.New("verbs").Funcs(functions()).Parse(verbTexts)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if err := t.ExecuteTemplate(w, name, result); err != nil {
		return err
	}
	return w.Flush()
}

func functions() template.FuncMap {
	return template.FuncMap{
		"plain":   func(text any) string { return event.Plain(fmt.Sprint(text)) },
		"clip":    func(text string) string { return event.Plain(api.Clip(text, 120)) },
		"short":   func(eventType string) string { return strings.TrimPrefix(eventType, "io.github.nodeagent.") },
		"rate":    func(r *float64) string { return fmt.Sprintf("%.2f", *r) },
		"first":   func(names []string) string { return finding.JoinFirst(names, 3) },
		"list":    func(one any) []any { return []any{one} },
		"ago":     ago,
		"moment":  func(t time.Time) string { return t.Format(time.RFC3339) },
		"clock":   func(t time.Time) string { return t.Local().Format(time.TimeOnly) },
		"seconds": func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Second) },
		"more":    func(l api.FaultList) int { return l.Total - len(l.Faults) },
		"row":     func(i api.Item) string { return strings.Join(eventRow(api.LineOf(i), 0), "\t") },
		"folded":  folded,
		"indented": func(text json.RawMessage) ([]string, error) {
			var out bytes.Buffer
			err := json.Indent(&out, text, "", "  ")
			return strings.Split(out.String(), "\n"), err
		},
		"length":       report.Length,
		"percent":      report.Percent,
		"milliseconds": func(n int64) string { return report.Length(n / 1000) },
		"day":          report.Report.Moment,
		"fresh":        func(r report.Report, row report.FaultRow) bool { return slices.Contains(r.New, row) },
		"placed": func(rows []report.PlaceRow) []report.PlaceRow {
			if len(rows) == 1 && rows[0].Name == "" {
				return nil // no data about them
			}
			return rows
		},
	}
}

// ago returns the time since a moment.
func ago(at time.Time) string { return web.Ago(time.Now(), at) }
