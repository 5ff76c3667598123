package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// Reports makes the report for a day or a week.
type Reports interface {
	Report(ctx context.Context, p report.Period, date string) (report.Report, error)
}

// report handles GET /v1/reports/daily and /v1/reports/weekly: JSON, or with format=html a document for an email, with
// links to the address in base.
func (s *Server) report(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	values := r.URL.Query()
	period, format := report.Period(r.PathValue("period")), values.Get("format")
	err := only(values, "date", "format", "base")
	switch {
	case err != nil:
	case s.Reports == nil || period != report.Daily && period != report.Weekly:
		err = refused(http.StatusNotFound, "there is no such report: want daily or weekly")
	case format != "" && format != "json" && format != "html":
		err = refused(http.StatusBadRequest, "format: want json or html")
	}
	var made report.Report
	if err == nil {
		made, err = s.Reports.Report(r.Context(), period, values.Get("date"))
		if refusal := ReportProblem(err); refusal != nil {
			if refusal.RetryWithin > 0 && !isGone(r) {
				s.Log.Error("make a report failed", "err", err)
			}
			err = refusal
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if format != "html" {
		respond(w, http.StatusOK, made)
		return
	}
	text, err := made.Mail(values.Get("base"))
	if err != nil {
		s.Log.Error("render a report failed", "err", err)
		s.fail(w, r, refused(http.StatusInternalServerError, "this report cannot be rendered"))
		return
	}
	web.WriteMail(w, text)
}

// ReportProblem returns the refusal for a report that cannot be made; nil: it can.
func ReportProblem(err error) *web.Refusal {
	if wrong, ok := errors.AsType[*report.DateError](err); ok {
		return &web.Refusal{Status: http.StatusBadRequest, Reason: wrong.Error()}
	}
	if none, ok := errors.AsType[*report.NoReportError](err); ok {
		return &web.Refusal{Status: http.StatusNotFound, Reason: none.Error()}
	}
	if err == nil {
		return nil
	}
	return &web.Refusal{Status: http.StatusServiceUnavailable, RetryWithin: 10 * time.Second,
		Reason: "the report cannot be made now; the log of the center says why"}
}
