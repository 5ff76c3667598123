package web

import (
	"bytes"
	"fmt"
	"html/template"
	"maps"
	"net/http"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// styles are for emails, which have no style sheet; pages have classes instead.
var styles = map[string]string{
	"body":  "font-family:sans-serif;font-size:14px;line-height:1.45;color:#1b1f24;background:#ffffff;margin:16px",
	"h1":    "font-size:20px;margin:0 0 10px",
	"h2":    "font-size:16px;margin:22px 0 6px",
	"p":     "margin:6px 0",
	"table": "border-collapse:collapse;width:100%",
	"h": "text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;color:#57606a;" +
		"font-size:12px;font-weight:600",
	"r":       "text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;font-weight:500",
	"n":       "text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;white-space:nowrap",
	"t":       "text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de",
	"a":       "color:#0a58ca",
	"small":   "color:#57606a",
	"fatal":   "padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;color:#b3261e;font-weight:600;vertical-align:top",
	"warning": "padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;color:#8a5a00;font-weight:600;vertical-align:top",
	"info":    "padding:4px 12px 4px 0;border-bottom:1px solid #d0d7de;font-weight:600;vertical-align:top",
}

// classes are from the pages' style sheet.
var classes = map[string]string{"n": "n", "t": "text", "fatal": "state fatal", "warning": "state warning",
	"info": "state info"}

// Report renders a report: the template "mail" for a self-contained document without a script, or "body" for the content of a
// page. Beside functions, a template has "plain" and "at", which styles an element by a name.
func Report(source string, mail bool, functions template.FuncMap, data any) ([]byte, error) {
	name, all := "body", template.FuncMap{"at": styled(mail), "plain": event.Plain}
	if mail {
		name = "mail"
	}
	maps.Copy(all, functions)
	t, err := template.New("report").Funcs(all).Parse(source)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.ExecuteTemplate(&out, name, data)
	return out.Bytes(), err
}

// WriteMail answers with a document for an email.
func WriteMail(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	_, _ = w.Write(text) //nolint:gosec // made by html/template
}

// styled returns the template function that styles an element, by a name: inline for an email, or with a class for a
// page.
func styled(mail bool) func(name any) template.HTMLAttr {
	return func(name any) template.HTMLAttr {
		key := fmt.Sprint(name)
		if mail {
			return template.HTMLAttr(`style="` + styles[key] + `"`) //nolint:gosec // from the table above
		}
		if classes[key] == "" {
			return ""
		}
		return template.HTMLAttr(`class="` + classes[key] + `"`) //nolint:gosec // from the table above
	}
}
