package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/web"
)

//go:embed report.html
var source string

// Percent returns a ratio for people.
func Percent(ratio *float64) string { return text("%.2f %%", ratio, 100) }

// Seconds returns a time for people.
func Seconds(s *float64) string { return text("%.2f s", s, 1) }

func text(format string, value *float64, times float64) string {
	if value == nil {
		return fmt.Sprintf("fewer than %d", sli.Enough)
	}
	return fmt.Sprintf(format, times**value)
}

// Page returns the report as the content of a page.
func (r *Report) Page() (template.HTML, error) {
	text, err := r.render(false)
	return template.HTML(text), err //nolint:gosec // made by html/template
}

// Mail returns the report as a self-contained document: styles are inline, and there is no script.
func (r *Report) Mail() ([]byte, error) { return r.render(true) }

func (r *Report) render(mail bool) ([]byte, error) {
	return web.Report(source, mail, template.FuncMap{"percent": Percent, "seconds": Seconds,
		"moment": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }}, r)
}
