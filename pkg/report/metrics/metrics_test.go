package metrics

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

var conditions = map[string]finding.Condition{
	"disk": {Type: "ReadonlyFilesystem", HealthyReason: "FilesystemIsNotReadOnly"}, reporttest.Check: {Type: "Suite"},
}

// scrape returns the lines of the exposition that begin with any of the prefixes.
func scrape(t *testing.T, m *Metrics, prefixes ...string) []string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("status %d: %s", answer.Code, answer.Body)
	}
	var lines []string
	for line := range strings.Lines(answer.Body.String()) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestBehaviour(t *testing.T) {
	reporttest.Behaviour(t, func(t *testing.T) reporttest.Subject {
		m := New(Config{Conditions: conditions})
		return reporttest.Subject{Reporter: m, Reports: func() []string {
			var reasons []string
			for _, line := range scrape(t, m, `problem_gauge{`) {
				_, rest, _ := strings.Cut(line, `reason="`)
				reason, _, _ := strings.Cut(rest, `"`)
				reasons = append(reasons, reason)
			}
			return reasons
		}}
	})
}

// The names, help texts and meaning are those of node-problem-detector v1.36, pkg/problemmetrics.
func TestProblemMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := New(Config{Conditions: conditions}), reporttest.NewWorld()
		for _, step := range []struct {
			reasons []string
			err     error
			want    []string
		}{
			{nil, nil, []string{
				"# HELP problem_gauge Whether a specific type of problem is affecting the node or not.",
				"# TYPE problem_gauge gauge",
				`problem_gauge{reason="CheckCouldNotTell",type="Suite"} 0`,
				`problem_gauge{reason="FilesystemIsNotReadOnly",type="ReadonlyFilesystem"} 0`,
			}},
			{[]string{"Ext4Error"}, nil, []string{
				"# HELP problem_counter Number of times a specific type of problem have occurred.",
				"# TYPE problem_counter counter",
				`problem_counter{reason="Ext4Error"} 1`,
				"# HELP problem_gauge Whether a specific type of problem is affecting the node or not.",
				"# TYPE problem_gauge gauge",
				`problem_gauge{reason="CheckCouldNotTell",type="Suite"} 0`,
				`problem_gauge{reason="Ext4Error",type="ReadonlyFilesystem"} 1`,
			}},
			{[]string{"XFSShutdown"}, nil, []string{
				"# HELP problem_counter Number of times a specific type of problem have occurred.",
				"# TYPE problem_counter counter",
				`problem_counter{reason="Ext4Error"} 1`, `problem_counter{reason="XFSShutdown"} 1`,
				"# HELP problem_gauge Whether a specific type of problem is affecting the node or not.",
				"# TYPE problem_gauge gauge",
				`problem_gauge{reason="CheckCouldNotTell",type="Suite"} 0`,
				`problem_gauge{reason="XFSShutdown",type="ReadonlyFilesystem"} 1`,
			}},
			{nil, finding.NotApplicable("no disk"), []string{
				"# HELP problem_counter Number of times a specific type of problem have occurred.",
				"# TYPE problem_counter counter",
				`problem_counter{reason="Ext4Error"} 1`, `problem_counter{reason="XFSShutdown"} 1`,
				"# HELP problem_gauge Whether a specific type of problem is affecting the node or not.",
				"# TYPE problem_gauge gauge",
				`problem_gauge{reason="CheckCouldNotTell",type="Suite"} 0`,
			}},
		} {
			time.Sleep(time.Minute)
			m.Update(w.Run("disk", step.err, step.reasons...))
			if diff := cmp.Diff(step.want, scrape(t, m, "problem_", "# HELP problem_", "# TYPE problem_")); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// A change of severity alone is not another problem.
func TestSeverityChangeIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := New(Config{}), reporttest.NewWorld()
		f := reporttest.Fatal("disk", 0, "Ext4Error")
		for _, f.Severity = range []finding.Severity{finding.Warning, finding.Fatal} {
			m.Update(w.Observe(finding.Observation{Check: "disk", At: w.Now(), Findings: []finding.Finding{f}}))
			time.Sleep(time.Minute)
		}
		if diff := cmp.Diff([]string{`problem_counter{reason="Ext4Error"} 1`},
			scrape(t, m, "problem_counter{")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestGoneSeriesAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := New(Config{}), reporttest.NewWorld()
		m.Update(w.Run("disk", nil, "A", "B"))
		m.Leftovers(map[Leftover]int{{"sandbox", "leftover"}: 2, {"mount", "unknown"}: 1})
		want := []string{
			`nodeagent_check_status{check="disk",status="faulty"} 1`,
			`nodeagent_check_status{check="disk",status="healthy"} 0`,
			`nodeagent_check_status{check="disk",status="not-applicable"} 0`,
			`nodeagent_check_status{check="disk",status="unknown"} 0`,
			`nodeagent_findings{check="disk",severity="fatal"} 2`, `nodeagent_findings{check="disk",severity="info"} 0`,
			`nodeagent_findings{check="disk",severity="warning"} 0`,
			`nodeagent_leftovers{kind="mount",verdict="unknown"} 1`,
			`nodeagent_leftovers{kind="sandbox",verdict="leftover"} 2`,
		}
		prefixes := []string{"nodeagent_check_status", "nodeagent_findings", "nodeagent_leftovers"}
		if diff := cmp.Diff(want, scrape(t, m, prefixes...)); diff != "" {
			t.Error(diff)
		}
		m.Update(finding.State{}, nil)
		m.Leftovers(nil)
		if got := scrape(t, m, prefixes...); len(got) > 0 {
			t.Errorf("still there: %v", got)
		}
	})
}

func TestCounts(t *testing.T) {
	m := New(Config{Version: "v1", Revision: "abc"})
	m.Ran("disk", 20*time.Millisecond, nil)
	m.Ran("disk", 20*time.Second, errors.New("cannot"))
	m.Ran("load", time.Millisecond, finding.NotApplicable("none"))
	m.Abandoned("disk")
	m.KmsgLost(3)
	m.KmsgLost(-1)
	m.Wrote("condition", report.ResultOK, nil)
	m.Queued("event", 4)
	m.Dropped("event", finding.Info, 2)
	m.Released("sandbox", "done")
	m.Requested("PATCH", "nodes/status", 200)
	m.Requested("POST", "events", 0)
	m.Released("bad\xff\n", "label")
	want := []string{
		`nodeagent_apiserver_requests_total{code="0",resource="events",verb="POST"} 1`,
		`nodeagent_apiserver_requests_total{code="200",resource="nodes/status",verb="PATCH"} 1`,
		`nodeagent_check_abandoned_total{check="disk"} 1`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="0.001"} 0`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="0.01"} 0`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="0.1"} 1`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="1"} 1`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="10"} 1`,
		`nodeagent_check_duration_seconds_bucket{check="disk",le="+Inf"} 2`,
		`nodeagent_check_duration_seconds_sum{check="disk"} 20.02`,
		`nodeagent_check_duration_seconds_count{check="disk"} 2`,
		`nodeagent_check_errors_total{check="disk"} 1`,
		`nodeagent_check_errors_total{check="load"} 0`,
		`nodeagent_kmsg_lost_total 3`,
		`nodeagent_outbox_dropped_total{reporter="event",severity="info"} 2`,
		`nodeagent_outbox_length{reporter="event"} 4`,
		`nodeagent_pods_ended_total 0`, `nodeagent_pods_left_over_total 0`,
		`nodeagent_releases_total{kind="bad�",result="label"} 1`,
		`nodeagent_releases_total{kind="sandbox",result="done"} 1`,
		`nodeagent_report_writes_total{reporter="condition",result="ok"} 1`,
	}
	got := slices.DeleteFunc(scrape(t, m, "nodeagent_"), func(line string) bool {
		return strings.Contains(line, "build_info") || strings.Contains(line, `duration_seconds_`) &&
			strings.Contains(line, `"load"`)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := scrape(t, m, `nodeagent_build_info{goversion="go1.`); len(got) != 1 ||
		!strings.HasSuffix(got[0], `revision="abc",version="v1"} 1`) {
		t.Error(got)
	}
}

// Two registries in one process are independent: there is no global state.
func TestNoGlobalState(t *testing.T) {
	a, b := New(Config{}), New(Config{})
	a.KmsgLost(1)
	if got := scrape(t, b, "nodeagent_kmsg_lost_total"); !slices.Equal(got, []string{"nodeagent_kmsg_lost_total 0"}) {
		t.Error(got)
	}
}

func TestReasonsAreBounded(t *testing.T) {
	m := New(Config{})
	for i := range 5000 {
		m.Update(finding.State{}, []finding.Update{{Kind: finding.Raised,
			Finding: finding.Finding{Reason: fmt.Sprint("R", i)}}})
	}
	lines := scrape(t, m, "problem_counter{")
	if len(lines) != maxReasons+1 || !slices.Contains(lines, `problem_counter{reason="OtherReasons"} 4500`) {
		t.Errorf("%d series", len(lines))
	}
}

func TestCheckAddress(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1:20257": true, "127.1.2.3:1": true, "[::1]:20257": true, "[::ffff:127.0.0.1]:1": true,
		"0.0.0.0:20257": false, ":20257": false, "[::]:20257": false, "10.0.0.1:1": false, "localhost:1": false,
		"127.0.0.1": false, "": false,
		"127.0.0.1:99999": false, "169.254.1.1:1": false,
	} {
		if err := CheckAddress(address); (err == nil) != ok {
			t.Errorf("CheckAddress(%q) = %v", address, err)
		}
	}
}
