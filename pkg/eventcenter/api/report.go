package api

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Reports makes the report for a day or a week.
type Reports interface {
	Report(p report.Period, date string) (report.Report, error)
}

// report handles GET /v1/reports/daily and /v1/reports/weekly: JSON, or with format=html a document for an email, with
// links to the address in base.
func (s *Server) report(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	format := values.Get("format")
	err := Only(values, "date", "format", "base")
	switch {
	case err != nil:
	case s.Reports == nil:
		err = refused(http.StatusNotFound, "there is no such report: want daily or weekly")
	case format != "" && format != "json" && format != "html":
		err = refused(http.StatusBadRequest, "format: want json or html")
	}
	var made report.Report
	var text []byte
	if err == nil {
		made, err = s.Reports.Report(report.Period(r.PathValue("period")), values.Get("date"))
		if err == nil && format == "html" {
			text, err = made.Mail(values.Get("base"))
		}
		err = ReportProblem(s.Log, err)
	}
	switch {
	case err != nil:
		s.fail(w, r, err)
	case format == "html":
		web.WriteMail(w, text)
	default:
		respond(w, http.StatusOK, made)
	}
}

// ReportProblem returns the refusal for a report that cannot be made; nil: it can. It logs errors of the center.
func ReportProblem(log *slog.Logger, err error) error {
	if _, refused := errors.AsType[*web.Refusal](err); refused || err == nil {
		return err
	}
	log.Error("make a report failed", "err", err)
	return &web.Refusal{Status: http.StatusServiceUnavailable, RetryWithin: 10 * time.Second,
		Reason: "the report cannot be made now; the log of the center says why"}
}
