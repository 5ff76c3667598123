package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web"
)

//go:embed report.html
var source string

type placesOf struct {
	ID, Title, What string
	Rows            []PlaceRow
}

// functions returns the template functions, with links to a center for an email.
func (r Report) functions(base string) template.FuncMap {
	return template.FuncMap{
		"link":   func(href string) string { return strings.TrimSuffix(base, "/") + href },
		"join":   func(names []string) string { return strings.Join(names, ", ") },
		"nodes":  Nodes,
		"length": Length,
		"milliseconds": func(n int64) string {
			return Length(n / 1000)
		},
		"percent": Percent,
		"rate":    func(r *float64) string { return fmt.Sprintf("%.2f", *r) },
		"moment":  r.Moment,
		"title":   Report.Title,
		"places": func(id, title, what string, rows []PlaceRow) placesOf {
			if len(rows) == 1 && rows[0].Name == "" {
				rows = nil // no data about them
			}
			return placesOf{id, title, what, rows}
		},
	}
}

// Moment returns a time in the timezone of the report, for people.
func (r Report) Moment(t time.Time) string {
	location, err := time.LoadLocation(r.Timezone)
	if err != nil {
		location = time.UTC // from another machine: each time shows its zone
	}
	return t.In(location).Format("2006-01-02 15:04 MST")
}

// Title returns the title of the report.
func (r Report) Title() string {
	if r.Period == Weekly {
		return "Week " + r.Name
	}
	return "Day " + r.Name
}

// Percent returns a share for people. Less than everything is never shown as 100 %.
func Percent(share float64) string {
	text := fmt.Sprintf("%.2f %%", 100*share)
	if text == "100.00 %" && share < 1 {
		return "99.99 %"
	}
	return text
}

// Page returns the report as the content of a page of the center.
func (r Report) Page() (template.HTML, error) {
	text, err := web.Report(source, false, r.functions(""), r)
	return template.HTML(text), err //nolint:gosec // made by html/template
}

// Mail returns the report as a self-contained document: styles are inline, and there is no script. Its links lead to
// the center at base, such as "https://center.example".
func (r Report) Mail(base string) ([]byte, error) {
	return web.Report(source, true, r.functions(base), r)
}
