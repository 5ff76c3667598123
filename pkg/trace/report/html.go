package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/web"
)

//go:embed report.html
var source string

// Percent returns a ratio for people.
func Percent(ratio *float64) string {
	if ratio == nil {
		return fmt.Sprintf("fewer than %d", sli.Enough)
	}
	return fmt.Sprintf("%.2f %%", 100**ratio)
}

// Seconds returns a time for people.
func Seconds(s *float64) string {
	if s == nil {
		return fmt.Sprintf("fewer than %d", sli.Enough)
	}
	return fmt.Sprintf("%.2f s", *s)
}

// Page returns the report as the content of a page.
func (r *Report) Page() (template.HTML, error) {
	text, err := r.render("body", false)
	return template.HTML(text), err //nolint:gosec // made by html/template
}

// Mail returns the report as a self-contained document: styles are inline, and there is no script.
func (r *Report) Mail() ([]byte, error) { return r.render("mail", true) }

func (r *Report) render(name string, mail bool) ([]byte, error) {
	t, err := template.New("report").Funcs(template.FuncMap{"at": web.Styled(mail), "plain": event.Plain, "percent": Percent, "seconds": Seconds,
		"moment": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }}).Parse(source)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.ExecuteTemplate(&out, name, r)
	return out.Bytes(), err
}
