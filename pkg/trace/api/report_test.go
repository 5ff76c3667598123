package api_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// sunday ends the week 2026-W10.
var sunday = time.Date(2026, 3, 8, 23, 30, 0, 0, time.UTC)

type fixture struct {
	t    testing.TB
	dir  string
	kept *store.Store
	api  *api.Server
	now  time.Time
}

func newFixture(t testing.TB, keepDays int) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "data"), now: sunday}
	var err error
	if f.kept, err = store.Open(t.Context(), f.dir, keepDays); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.kept.Close() })
	follower, log := follow.New(follow.Config{Promised: time.Minute}), slog.New(slog.DiscardHandler)
	f.api = &api.Server{Follower: follower, Store: f.kept, Prober: probe.New(nil, follower, log), Log: log, Now: func() time.Time { return f.now }}
	return f
}

// act returns an act of a pod that began a minute before its verdict.
func act(kind record.Act, uid string, outcome verdict.Outcome, at time.Time, because reason.Reason) follow.Act {
	a := follow.Act{Timeline: record.Timeline{Act: kind, UID: uid, Namespace: "default", Name: "pod-" + uid, Node: "node-" + uid[:1], OwnerKind: "Job",
		OwnerName: "job-" + uid[:1]}, Verdict: verdict.Verdict{Outcome: outcome}, JudgedAt: at}
	for i, p := range []record.Point{record.Created, record.Scheduled, record.KubeletSaw, record.SandboxReady, record.Running} {
		a.Timeline.Set(p, record.Mark{Source: record.Own, Arrival: at.Add(-time.Minute + time.Duration(i*i)*time.Second)})
	}
	a.Timeline.Set(record.DeleteRequested, record.Mark{Source: record.Own, Arrival: at.Add(-time.Minute)})
	if outcome == verdict.Missed {
		a.First = reason.Result{Reason: because, Class: reason.System}
		if because == "InitSlow" {
			a.First.Class = reason.User
		}
		a.Final = a.First
	}
	return a
}

func (f *fixture) save(acts ...follow.Act) {
	f.t.Helper()
	if err := f.kept.Save(f.t.Context(), follow.Batch{Judged: acts}); err != nil {
		f.t.Fatal(err)
	}
}

// count adds up all hours that are over.
func (f *fixture) count(hours int) {
	f.t.Helper()
	for range hours {
		if err := f.kept.CountHour(f.t.Context(), f.now, nil); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) report(week, namespace string) report.Report {
	f.t.Helper()
	r, err := f.api.Report(f.t.Context(), week, namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// twoWeeks saves the acts of the week 2026-W10, and of a day in the week before.
func (f *fixture) twoWeeks() {
	before, now := sunday.AddDate(0, 0, -8), sunday.Add(-26*time.Hour)
	for i := range 30 {
		f.save(act(record.Creation, fmt.Sprintf("a%d", i), verdict.Delivered, now, ""), act(record.Creation, fmt.Sprintf("o%d", i), verdict.Delivered, before, ""))
	}
	f.save(act(record.Creation, "om", verdict.Missed, before, "SandboxFailed"), act(record.Creation, "am", verdict.Missed, now, "SandboxFailed"),
		act(record.Creation, "bm", verdict.Missed, now.Add(time.Minute), "NodeLost"), act(record.Creation, "bn", verdict.Missed, sunday.Add(-time.Minute), "NodeLost"),
		act(record.Creation, "bu", verdict.Missed, now, "InitSlow"), act(record.Creation, "bx", verdict.Unknown, now, ""))
	still, gone := act(record.Deletion, "ds", verdict.Missed, now, "FinalizerHeld"), act(record.Deletion, "dg", verdict.Missed, now, "StopNotNoticed")
	gone.Timeline.Set(record.Gone, record.Mark{Source: record.Own, Arrival: now.Add(time.Minute)})
	f.save(still, gone)
}

// The report is the same before and after the hours are added up, and when the week is over; it remains when the acts
// are dropped.
func TestReport(t *testing.T) {
	f := newFixture(t, 8)
	f.twoWeeks()
	f.save(follow.Act{Timeline: record.Timeline{Act: record.Creation, UID: "other", Namespace: "team", Name: "x"}, JudgedAt: sunday,
		Verdict: verdict.Verdict{Outcome: verdict.Delivered}})
	check := func(when string, r report.Report) {
		t.Helper()
		c := r.Acts[0]
		if c.Act != record.Creation || c.Delivered != 31 || c.System != 3 || c.User != 1 || c.Unknown != 1 || *c.Success != 31./34 || c.Before.Delivered != 30 ||
			c.Before.System != 1 {
			t.Errorf("%s: %+v", when, c)
		}
		var reasons []string
		for _, x := range r.Reasons {
			reasons = append(reasons, fmt.Sprintf("%s %s %d %d %t %s", x.Act, x.Reason, x.N, x.Before, x.New, x.Example))
		}
		want := "creation NodeLost 2 0 true default/pod-bn, creation SandboxFailed 1 1 false default/pod-am, creation InitSlow 1 0 true default/pod-bu, " +
			"deletion FinalizerHeld 1 0 true default/pod-ds, deletion StopNotNoticed 1 0 true default/pod-dg"
		if got := strings.Join(reasons, ", "); got != want {
			t.Errorf("%s: %s", when, got)
		}
		if len(r.Leftovers) != 1 || r.Leftovers[0].Reason != "FinalizerHeld" || r.Leftovers[0].N != 1 {
			t.Errorf("%s: %+v", when, r.Leftovers)
		}
		if w := r.Nodes[0]; w.Name != "node-b" || w.Missed != 2 || w.Samples != 2 || w.Share != nil || w.OfAll != nil {
			t.Errorf("%s: %+v", when, r.Nodes)
		}
		if w := r.Owners[2]; w.Name != "default/Job/job-a" || w.Missed != 1 || w.Samples != 31 || *w.Share != 1./31 {
			t.Errorf("%s: %+v", when, r.Owners)
		}
		if s := r.Stages[1]; s.Stage != "c06" || s.Samples != 33 || *s.P50 < 2.5 || *s.P50 > 3.5 || s.Share == nil {
			t.Errorf("%s: %+v", when, r.Stages)
		}
		if b := r.Budget; b.Samples != 65 || *b.Success != 61./65 || *b.Left > -5 {
			t.Errorf("%s: %+v", when, b)
		}
	}
	f.count(24 * 3) // the days before the week
	check("some hours are added up", f.report("2026-W10", ""))
	f.count(24 * 7)
	check("all are", f.report("2026-W10", ""))
	check("the last 7 days", f.report("", ""))
	if r := f.report("2026-W10", "team"); r.Acts[0].Delivered != 1 || len(r.Reasons)+len(r.Nodes)+len(r.Owners) != 0 {
		t.Errorf("of a namespace: %+v", r)
	}
	f.now = sunday.Add(2 * time.Hour)
	f.count(2)
	for range 2 {
		if err := f.api.KeepWeek(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
	}
	f.now = sunday.AddDate(0, 2, 0)
	if err := f.kept.Expire(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	check("the acts are dropped", f.report("2026-W10", ""))
	if r := f.report("2026-W10", "team"); r.Acts[0].Delivered != 1 || !strings.Contains(strings.Join(r.Missing, ""), "the acts before 2026-04-30") {
		t.Errorf("of a namespace, the acts are dropped: %+v", r)
	}
	f.now = sunday.AddDate(0, 14, 0)
	if err := f.kept.Expire(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	if r := f.report("2026-W10", ""); r.Judged() {
		t.Errorf("after 14 months: %+v", r)
	}
}

// A verdict or reason that comes late changes the sums of its hour.
func TestLateReason(t *testing.T) {
	f := newFixture(t, 8)
	f.twoWeeks()
	f.count(24 * 9)
	late := act(record.Creation, "am", verdict.Missed, sunday.Add(-26*time.Hour), "ImagePullFailed")
	if err := f.kept.Save(t.Context(), follow.Batch{Refined: []follow.Act{late}, Judged: []follow.Act{act(record.Creation, "zz", verdict.Delivered,
		sunday.Add(-50*time.Hour), "")}}); err != nil {
		t.Fatal(err)
	}
	f.count(2)
	if r := f.report("2026-W10", ""); r.Acts[0].Delivered != 31 || !strings.Contains(fmt.Sprint(r.Reasons), "ImagePullFailed system 1 0") {
		t.Errorf("%+v", r)
	}
}

func TestWeeks(t *testing.T) {
	for week, want := range map[string]string{"2026-W01": "2025-12-29", "2026-W53": "2026-12-28", "2020-W53": "2020-12-28", "2027-W01": "2027-01-04",
		"2027-W53": "", "2026-W54": "", "2026-W00": "", "2026-W1": "", "x": "", "": "", "2026-W-1": "", "2026-W48 ": ""} {
		from, _, err := report.Bounds(week)
		if (err != nil) != (want == "") || err == nil && from.Format(time.DateOnly) != want {
			t.Errorf("%q: %v, %v", week, from, err)
		}
	}
	f := newFixture(t, 8)
	for _, week := range []string{"2026-W11", "x"} {
		if _, err := f.api.Report(t.Context(), week, ""); err == nil {
			t.Errorf("%s: no error", week)
		}
	}
	if r := f.report("", ""); r.Judged() || r.Budget.Left != nil {
		t.Errorf("without verdicts: %+v", r)
	}
}

// everyone may read the namespace team only.
type everyone struct{}

func anybody(*http.Request) (web.Identity, error) { return web.Identity{}, nil }

func (everyone) Authorize(context.Context, web.Identity, string, string) error {
	return errors.New("no")
}

func (everyone) AuthorizeResource(_ context.Context, _ web.Identity, _, _, namespace string) error {
	if namespace == "team" {
		return nil
	}
	return &web.Refusal{Status: http.StatusForbidden, Reason: "no right"}
}

// A user reads the report of their namespace; a document for an email has its styles in it, and shows names as text.
func TestReportAsMail(t *testing.T) {
	f := newFixture(t, 8)
	f.api.Access, f.api.Authenticate = everyone{}, anybody
	f.twoWeeks()
	f.save(follow.Act{Timeline: record.Timeline{Act: record.Creation, UID: "t", Namespace: "team", Name: "<b>x"}, JudgedAt: sunday.Add(-time.Hour),
		Verdict: verdict.Verdict{Outcome: verdict.Missed}, Final: reason.Result{Reason: "NodeLost", Class: reason.System}})
	for path, want := range map[string]int{"/v1/report": 403, "/v1/report?namespace=default": 403, "/v1/report?namespace=team&week=x": 400,
		"/v1/report?namespace=team": 200, "/v1/report?namespace=team&week=2026-W10&format=html": 200} {
		answer := httptest.NewRecorder()
		f.api.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		text := answer.Body.String()
		if answer.Code != want || strings.Contains(text, "pod-b") || strings.Contains(text, "job-") {
			t.Errorf("%s: %d %s", path, answer.Code, text)
		}
		if strings.Contains(path, "html") && (!strings.Contains(text, "<!doctype html>") || !strings.Contains(text, "team/&lt;b&gt;x") ||
			!strings.Contains(text, `<table style="border-collapse`) || strings.Contains(text, "<b>x") || strings.Contains(text, "class=") || strings.Contains(text, "href")) {
			t.Error(text)
		}
	}
}

// BenchmarkReport reports a week of 1,000,000 acts, of 5,000 nodes, 2,000 owners and 200 namespaces.
func BenchmarkReport(b *testing.B) {
	f := newFixture(b, 30)
	const all = 1_000_000
	r, done := rand.New(rand.NewPCG(1, 1)), 0
	for day := range 7 {
		at := sunday.AddDate(0, 0, -day).Truncate(24 * time.Hour)
		f.save(act(record.Creation, fmt.Sprintf("a%d", day), verdict.Delivered, at, "")) // creates the file
		db, err := sql.Open("sqlite", filepath.Join(f.dir, at.Format(time.DateOnly)+".db"))
		if err != nil {
			b.Fatal(err)
		}
		tx, err := db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		insert, err := tx.PrepareContext(b.Context(), `INSERT INTO acts VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
		if err != nil {
			b.Fatal(err)
		}
		for range all / 7 {
			done++
			uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", r.Uint32(), done)
			kind, outcome, because, class := "creation", "delivered", "", ""
			if done%2 == 0 {
				kind = "deletion"
			}
			if r.IntN(200) == 0 {
				outcome, because, class = "missed", []string{"SandboxFailed", "NodeLost", "ImagePullCostTime", "StopNotNoticed"}[r.IntN(4)], "system"
			}
			namespace := r.IntN(200)
			stages := fmt.Sprintf("c04=%d c06=%d c10=%d c11=%d c13=%d c15=%d", r.IntN(900), r.IntN(500), r.IntN(4000), r.IntN(20000), r.IntN(900), r.IntN(9000))
			if _, err := insert.ExecContext(b.Context(), uid+" "+kind+" 0", uid, kind, fmt.Sprintf("ns-%d", namespace), "pod-"+uid[:8], fmt.Sprintf("node-%d",
				r.IntN(5000)), fmt.Sprintf("Deployment/d-%d", namespace*10+r.IntN(10)), outcome, "", class, because, because,
				at.UnixMilli()+int64(r.IntN(23*3600*1000)), 9000, 0, stages, r.IntN(4)); err != nil {
				b.Fatal(err)
			}
		}
		if err := errors.Join(insert.Close(), tx.Commit(), db.Close()); err != nil {
			b.Fatal(err)
		}
	}
	began := time.Now()
	for day := range 7 { // the machine's own speed
		db, err := sql.Open("sqlite", filepath.Join(f.dir, sunday.AddDate(0, 0, -day).Format(time.DateOnly)+".db"))
		if err != nil {
			b.Fatal(err)
		}
		var bytes int
		err = db.QueryRowContext(b.Context(), `SELECT sum(length(stages)) FROM acts NOT INDEXED`).Scan(&bytes)
		if err := errors.Join(err, db.Close()); err != nil {
			b.Fatal(err)
		}
	}
	b.Logf("reading all stages by SQLite itself: %v", time.Since(began))
	began = time.Now()
	f.count(24 * 8)
	b.Logf("adding up 7 days of hours: %v", time.Since(began))
	began = time.Now()
	for i := range 20 {
		if rows, err := f.kept.Find(b.Context(), "", "ns-7", fmt.Sprintf("pod-%08x", i)); err != nil {
			b.Fatal(rows, err)
		}
		if rows, err := f.kept.Find(b.Context(), fmt.Sprintf("a%d", i%7), "", ""); err != nil || len(rows) != 1 {
			b.Fatal(rows, err)
		}
	}
	b.Logf("finding a pod: %v", time.Since(began)/40)
	disk := int64(0)
	files, err := filepath.Glob(filepath.Join(f.dir, "*.db"))
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			disk += info.Size()
		}
	}
	b.Logf("disk: %d MB, %v", disk/1e6, err)
	for _, namespace := range []string{"", "ns-7"} {
		b.Run("namespace="+namespace, func(b *testing.B) {
			for b.Loop() {
				if r := f.report("2026-W10", namespace); namespace == "" && r.Acts[0].Total+r.Acts[1].Total < all-100 {
					b.Errorf("%+v", r.Acts)
				}
			}
		})
	}
}
