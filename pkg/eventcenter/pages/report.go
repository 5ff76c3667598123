package pages

import (
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type reportView struct {
	Filter               []web.Field
	Content              template.HTML
	Daily, Weekly        string // addresses
	Earlier, Later, Mail string
}

// report shows the report of a day or week.
func (s *server) report(w http.ResponseWriter, r *http.Request, _ web.Session) {
	period := report.Period(r.PathValue("period"))
	var content template.HTML
	made, err := s.Reports.Report(period, r.URL.Query().Get("date"))
	if err == nil {
		content, err = made.Page()
	}
	if refusal := web.RefusalOf(api.ReportProblem(s.Log, err), 0); refusal != nil {
		s.Message(w, r, refusal.Status, refusal.Reason)
		return
	}
	location, err := time.LoadLocation(made.Timezone)
	if err != nil {
		location = time.UTC
	}
	first := made.From.In(location)
	step := 1
	if period == report.Weekly {
		step = 7
	}
	at := func(p report.Period, t time.Time) string {
		return "/reports/" + string(p) + "?date=" + t.Format(time.DateOnly)
	}
	v := reportView{Filter: []web.Field{{Name: "date", Value: first.Format(time.DateOnly)}}, Content: content, Daily: at(report.Daily, first),
		Weekly: at(report.Weekly, first),
		Mail:   "/v1/reports/" + string(period) + "?format=html&date=" + first.Format(time.DateOnly)}
	if made.Earlier != "" {
		v.Earlier = "/reports/" + string(period) + "?date=" + made.Earlier
	}
	if made.To.Before(s.Now()) {
		v.Later = at(period, first.AddDate(0, 0, step))
	}
	s.Show(w, r, http.StatusOK, "report", web.View{Title: made.Title(), Data: v,
		JSON: jsonOf("/v1/reports/"+string(period), url.Values{"date": {first.Format(time.DateOnly)}}, "date")})
}

// maintenance declares that a node is under maintenance until a time, and is not expected to be available.
func (s *server) maintenance(w http.ResponseWriter, r *http.Request, who web.Session) {
	key := model.Key{Cluster: r.PostFormValue("cluster"), Node: r.PostFormValue("node")}
	d, err := time.ParseDuration(r.PostFormValue("for"))
	if _, _, there := s.Model.Node(key); !there || err != nil {
		s.Message(w, r, http.StatusBadRequest, "Which node is in maintenance, and for how long? Want a duration, as 4h.")
		return
	}
	e, err := model.MaintenanceEvent(key, event.Operator{By: who.Name, Text: r.PostFormValue("text")}, d, s.Now())
	if err != nil {
		s.Message(w, r, http.StatusBadRequest, err.Error())
		return
	}
	s.store(w, r, who, e)
}
