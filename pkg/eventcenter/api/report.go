package api

import (
	"net/http"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// report handles GET /v1/reports/daily and /v1/reports/weekly: JSON, or with format=html a document for an email, with
// links to the address in base.
func (s *Server) report(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	format := values.Get("format")
	err := only(values, "date", "format", "base")
	switch {
	case err != nil:
	case s.Reports == nil:
		err = refused(http.StatusNotFound, "there are no reports")
	case format != "" && format != "json" && format != "html":
		err = refused(http.StatusBadRequest, "format: want json or html")
	}
	var made report.Report
	if err == nil {
		made, err = s.Reports.Report(r.Context(), report.Period(r.PathValue("period")), values.Get("date"))
	}
	var text []byte
	if err == nil && format == "html" {
		text, err = made.Mail(values.Get("base"))
	}
	switch {
	case err != nil:
		s.fail(w, r, err)
	case format == "html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		_, _ = w.Write(text) //nolint:gosec // made by html/template
	default:
		respond(w, http.StatusOK, made)
	}
}
