package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// show prints the answer to a GET request by the template of this name, and reports problems that the answer shows.
func show[T any](o *options, cmd *cobra.Command, path, name string, problems func(answer T) bool) error {
	var answer T
	err := o.Show(cmd, http.MethodGet, path, nil, name, &answer)
	return problemsOf(err == nil && problems(answer), err)
}

// do requests a change, and prints the result.
func (o *options) do(cmd *cobra.Command, method, path string, body io.Reader) error {
	return o.Show(cmd, method, path, body, "done", &struct{ Done string }{})
}

// verbTexts has the text of each answer. Text from senders must pass through a function that makes it plain: it cannot
// control the terminal.
//
//go:embed verbs.txt
var verbTexts string

func functions() template.FuncMap {
	return template.FuncMap{
		"clip":    func(text string) string { return event.Plain(api.Clip(text, 120)) },
		"short":   func(eventType string) string { return strings.TrimPrefix(eventType, "io.github.nodeagent.") },
		"rate":    func(r *float64) string { return fmt.Sprintf("%.2f", *r) },
		"first":   func(names []string) string { return finding.JoinFirst(names, 3) },
		"list":    func(one any) []any { return []any{one} },
		"ago":     ago,
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
