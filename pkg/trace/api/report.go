package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	week     = 7 * 24 * time.Hour
	weekDone = time.Hour       // after its end, the report of a week is final
	unseen   = 5 * time.Minute // the end of a deletion may be stored so much later
	maxTook  = 50              // namespaces of one response

	centerLimit = 5 * time.Second // for the event center's report
	centerWait  = 24 * time.Hour  // after its end, the report of a week is kept without it
)

// Report returns the report of an ISO week; empty: of the last 7 days. A finished one is kept.
func (s *Server) Report(ctx context.Context, name, namespace string) (report.Report, error) {
	now := s.Now().UTC()
	r := report.Report{Week: name, Namespace: namespace, AsOf: now, From: now.Truncate(time.Hour).Add(time.Hour - week), To: now}
	if name != "" {
		from, to, err := report.Bounds(name)
		if err != nil || !from.Before(now) {
			return r, badRequest(cmp.Or(err, fmt.Errorf("week %s has not begun", name)).Error())
		}
		if r.From = from; to.Before(now) {
			r.To = to
			if kept, err := s.Store.Week(ctx, name); namespace == "" && (err != nil || kept != nil) {
				return *cmp.Or(kept, &r), err
			}
		}
	}
	if s.Sender != nil && namespace == "" {
		var missing string
		if r.Center, missing = nodesOnline(ctx, s.Sender, &r); missing != "" {
			r.Missing = append(r.Missing, "the nodes: "+missing)
		}
	}
	s.reports.Lock() // one at a time: each reads all acts of the week
	defer s.reports.Unlock()
	if err := ctx.Err(); err != nil {
		return r, err
	}
	return r, s.fillReport(ctx, &r)
}

func (s *Server) fillReport(ctx context.Context, r *report.Report) (err error) {
	sum := report.NewSum()
	for into, span := range map[*[]sli.Count][2]time.Time{&sum.Week: {r.From, r.To}, &sum.Before: {r.From.Add(-week), r.To.Add(-week)},
		&sum.Month: {r.To.Truncate(time.Hour).AddDate(0, 0, -report.Days), r.To}} {
		if *into, err = s.Store.Sums(ctx, span[0], span[1], r.Namespace); err != nil {
			return err
		}
	}
	if r.Since, sum.Known, err = s.Store.History(ctx, r.From, r.Namespace); err != nil {
		return err
	}
	if kept := s.Store.Kept(r.AsOf); r.From.Before(kept) {
		r.Missing = append(r.Missing, "the acts before "+kept.Format(time.DateOnly)+", for owners, nodes, examples, leftovers and stages")
	}
	if err := s.Store.MissesOf(ctx, r.From, r.To, r.Namespace, func(m store.Row) {
		sum.Miss(sli.Act{Namespace: m.Namespace, Owner: m.Owner, Node: m.Node, Act: m.Act, Outcome: m.Outcome, Class: reason.Class(m.Class),
			Reason: reason.Reason(m.Reason), At: m.At}, m.Name, isLeft(m, r.AsOf))
	}); err != nil {
		return err
	}
	if err := s.Store.Acts(ctx, r.From, r.To, r.Namespace, sum.Act); err != nil {
		return err
	}
	sum.Fill(r)
	if sum.Capped {
		r.Missing = append(r.Missing, "owners or nodes: too many had misses")
	}
	var first time.Time
	if err := s.Store.Note(ctx, store.First, &first); err != nil {
		return err
	}
	r.Budget.Days = min(report.Days, max(0, r.To.Sub(first).Hours()/24))
	probes, err := s.Store.Probes(ctx, r.To, r.To.Sub(r.From))
	for _, p := range probes {
		of := &r.Online
		if p.Component == probe.FlowSchemas {
			of = &r.Requests
		}
		*of = append(*of, report.Online{Component: p.Component, Instance: p.Instance, Rate: sli.Ratio(p.Good, p.Good+p.Bad), Samples: p.Good + p.Bad})
	}
	if err != nil {
		return err
	}
	cells, err := s.Store.Cells(ctx, r.From, r.To)
	if err != nil {
		return err
	}
	if r.Namespace == "" { // the times are not kept by namespace
		_, r.Slower = report.Compare(cells)
	}
	var took []report.Placed
	r.Exhausted, took, err = s.Store.LastCapacity(ctx, r.To, r.To.Sub(r.From), r.Namespace)
	r.Took = took[:min(len(took), maxTook)]
	return err
}

// nodesOnline returns the cluster's part of the event center's report, or why it is missing. Without a week, it is that of the
// newest one: in the first hours of Monday, an event center with another timezone has no later one.
func nodesOnline(ctx context.Context, from *messages.Sender, r *report.Report) (online *report.NodesOnline, missing string) {
	var answer struct {
		Name    string
		Partial bool
		ByPool  []struct {
			Cluster                string
			Nodes, Found, Repaired int
			Availability           struct{ Available, Unavailable, Unknown float64 } // the mean of its nodes
		}
	}
	path := "/v1/reports/weekly"
	if r.Week != "" {
		path += "?date=" + r.From.Format(time.DateOnly)
	}
	err := from.Center.Get(ctx, centerLimit, path, &answer)
	switch refused, ok := errors.AsType[*client.RefusedError](err); {
	case ok && refused.Status == http.StatusNotFound:
		return nil, "the event center has no report of that week"
	case ok:
		return nil, fmt.Sprintf("the event center refuses: status %d", refused.Status)
	case err != nil:
		return nil, "the event center does not answer"
	}
	online = &report.NodesOnline{Week: answer.Name, Partial: answer.Partial}
	for _, pool := range answer.ByPool {
		if pool.Cluster != from.Cluster {
			continue
		}
		n := float64(pool.Nodes)
		online.Nodes, online.Found, online.Repaired = online.Nodes+pool.Nodes, online.Found+pool.Found, online.Repaired+pool.Repaired
		online.Available += n * pool.Availability.Available
		online.Unavailable += n * pool.Availability.Unavailable
		online.Unknown += n * pool.Availability.Unknown
	}
	if online.Nodes == 0 {
		return nil, "the event center's report has none of this cluster"
	}
	for _, share := range []*float64{&online.Available, &online.Unavailable, &online.Unknown} {
		*share /= float64(online.Nodes)
	}
	return online, ""
}

// isLeft reports whether a deletion did not end in time for leftovers.
func isLeft(m store.Row, now time.Time) bool {
	if m.Act != record.Deletion || m.Evidence == nil {
		return false
	}
	t := &m.Evidence.Timeline
	end := now.Add(-unseen)
	if gone := t.At(record.Gone); gone.Known() {
		end = gone.Arrival
	}
	return end.Sub(t.Begin().Arrival) > follow.Leftover+t.Grace
}

// KeepWeek keeps the report of the last week, once.
func (s *Server) KeepWeek(ctx context.Context, now time.Time) error {
	name := report.WeekOf(now.Add(-weekDone - week))
	if kept, err := s.Store.Week(ctx, name); err != nil || kept != nil {
		return err
	}
	made, err := s.Report(ctx, name, "")
	_, end, _ := report.Bounds(name)
	unsettled := s.Sender != nil && (made.Center == nil || made.Center.Partial)
	if err != nil || !made.Judged() || unsettled && now.Before(end.Add(centerWait)) {
		return err
	}
	return s.Store.KeepWeek(ctx, name, made)
}

func (s *Server) getReport(w http.ResponseWriter, r *http.Request, _ web.Identity) {
	q := r.URL.Query()
	made, err := s.Report(r.Context(), q.Get("week"), q.Get("namespace"))
	if err == nil && q.Get("format") == "html" {
		var text []byte
		if text, err = made.Mail(); err == nil {
			web.WriteMail(w, text)
			return
		}
	}
	s.respond(w, r, made, err)
}

// Tenants is the response about tenants: whose requests the apiservers throttled, and whose pods took the last capacity.
type Tenants struct {
	AsOf      time.Time       `json:"asof"`
	Window    string          `json:"window"`
	Requests  []Requests      `json:"requests"`  // by FlowSchema; without a namespace only
	Exhausted int             `json:"exhausted"` // creations missed because no node had room
	Took      []report.Placed `json:"took"`      // the pods placed in the hours of these misses, and in the hour before
}

// Requests are the requests of a FlowSchema.
type Requests struct {
	FlowSchema string   `json:"flowSchema"`
	Served     int      `json:"served"`    // within a second
	Throttled  int      `json:"throttled"` // rejected, or held for longer
	Share      *float64 `json:"share"`     // of served ones; null if there are too few
}

// Tenants returns the tenants of a window, and of a namespace.
func (s *Server) Tenants(ctx context.Context, q url.Values) (Tenants, error) {
	c, err := s.scopeOf(q, "1d")
	if err != nil {
		return Tenants{}, err
	}
	answer := Tenants{AsOf: c.now, Window: c.name, Requests: []Requests{}}
	counts, err := s.Store.Probes(ctx, c.now, c.window)
	if err != nil {
		return answer, err
	}
	for _, of := range counts {
		if of.Component == probe.FlowSchemas && c.Namespace == "" {
			answer.Requests = append(answer.Requests, Requests{of.Instance, of.Good, of.Bad, sli.Ratio(of.Good, of.Good+of.Bad)})
		}
	}
	misses, took, err := s.Store.LastCapacity(ctx, c.now, c.window, c.Namespace)
	answer.Exhausted, answer.Took = misses, append([]report.Placed{}, took[:min(len(took), maxTook)]...)
	return answer, err
}

// Versions is the response about versions of the nodes' software in the last 7 days.
type Versions struct {
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	Slower   []report.Slower  `json:"slower"`
	Versions []report.Version `json:"versions"`
}

// Versions returns the time of each stage by version of the node's software, and the versions that are slower.
func (s *Server) Versions(ctx context.Context, _ url.Values) (Versions, error) {
	to := s.Now().UTC().Truncate(time.Hour)
	answer := Versions{From: to.Add(-week), To: to, Slower: []report.Slower{}, Versions: []report.Version{}}
	cells, err := s.Store.Cells(ctx, answer.From, answer.To)
	if err != nil {
		return answer, err
	}
	versions, slower := report.Compare(cells)
	answer.Versions, answer.Slower = append(answer.Versions, versions...), append(answer.Slower, slower...)
	return answer, nil
}
