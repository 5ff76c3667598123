package web

import (
	"fmt"
	"html/template"
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

// Styled returns the template function that styles an element, by a name: inline for an email, or with a class for a
// page.
func Styled(mail bool) func(name any) template.HTMLAttr {
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
