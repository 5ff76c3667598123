package web

import (
	"fmt"
	"html/template"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Functions are the template functions of each page.
var Functions = template.FuncMap{
	"ago":   Ago,
	"at":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"plain": event.Plain,
	"args": func(pairs ...any) map[string]any { // for a template: names, each followed by its value
		all := map[string]any{}
		for i := 0; i+1 < len(pairs); i += 2 {
			all[fmt.Sprint(pairs[i])] = pairs[i+1]
		}
		return all
	},
	"percent": func(part, all int) string {
		if all == 0 {
			return "0"
		}
		return fmt.Sprintf("%.1f", 100*float64(part)/float64(all))
	},
}

// Field is one field of a filter, for the template "filter".
type Field struct {
	Name, Value string
	Choices     []string // empty: any text
}

// Fields returns the fields of a filter with their values in a query.
func Fields(q url.Values, choices map[string][]string, names ...string) (fields []Field) {
	for _, name := range names {
		fields = append(fields, Field{name, q.Get(name), choices[name]})
	}
	return fields
}

// With returns a query with another value.
func With(q url.Values, name, value string) url.Values {
	changed := url.Values{}
	for k, v := range q {
		changed[k] = v
	}
	changed.Set(name, value)
	return changed
}

// Ago returns the time from a moment to now.
func Ago(now, at time.Time) string {
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
