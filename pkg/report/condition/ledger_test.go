package condition

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// TestObserve covers the cases that the property test cannot reach: a kill between an observation and the write of its
// result, and a tracker that alone lost its state.
func TestObserve(t *testing.T) {
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	timestamp := func(hour int) finding.Timestamp {
		return finding.Timestamp{Wall: day.Add(time.Duration(hour) * time.Hour), Boot: "boot",
			SinceBoot: time.Duration(hour) * time.Hour}
	}
	const started = 10
	disk := &kind{name: "Disk"}
	for _, test := range []struct {
		name   string
		record record
		since  int // of the first verdict, faulty
		sole   bool
		want   int
	}{
		{"as stored", record{Status: finding.StatusFaulty, Since: timestamp(3), Shown: day.Add(time.Hour)}, 3, true, 1},
		{"moved there and back before the restart, which was not stored", record{Status: finding.StatusFaulty,
			Since: timestamp(3), Shown: day.Add(3 * time.Hour)}, 5, true, 5},
		{"first observation of a tracker without saved state", record{Status: finding.StatusFaulty, Since: timestamp(3),
			Shown: day.Add(3 * time.Hour)}, 11, true, 3},
		{"another check of the same condition reports", record{Status: finding.StatusFaulty, Since: timestamp(3),
			Shown: day.Add(3 * time.Hour)}, 5, false, 3},
		{"another status", record{Status: finding.StatusHealthy, Since: timestamp(3), Shown: day.Add(3 * time.Hour)}, 4,
			true, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger(timestamp(started))
			l.records["Disk"] = test.record
			l.observe(disk, report.Verdict{Status: finding.StatusFaulty, Since: timestamp(test.since), Sole: test.sole})
			if got, want := l.records["Disk"].Shown, day.Add(time.Duration(test.want)*time.Hour); !got.Equal(want) {
				t.Errorf("shown since %s, want %s", at(got), at(want))
			}
			l.observe(disk, report.Verdict{Status: finding.StatusFaulty, Since: timestamp(12), Sole: true})
			if got := l.records["Disk"].Shown; !got.Equal(timestamp(12).Wall) {
				t.Errorf("after a move there and back it is shown since %s", at(got))
			}
		})
	}
}

// model is the truth: the believed status and when it really changed, regardless of restarts, lost state and outages of
// the apiserver.
type model struct {
	status corev1.ConditionStatus
	moved  time.Time
}

func (m *model) see(status corev1.ConditionStatus, now time.Time) {
	if m.status != status {
		m.status, m.moved = status, now.Truncate(time.Second)
	}
}

// agent is a sequence of runs of the reporter on one node.
type agent struct {
	world *reporttest.World
	node  *reporttest.Node
	store *reporttest.Store
	run   *Reporter
	stop  func()
}

func (a *agent) start(t *testing.T) {
	c := testConfig(a.node)
	c.Store, c.Started = a.store, a.world.Now()
	a.run = New(c)
	a.stop = reporttest.Start(t, a.run)
}

// restart ends the agent and starts it again, with or without its state file.
func (a *agent) restart(t *testing.T, lose bool) {
	a.stop()
	state := a.world.State()
	if lose {
		state, a.store = nil, reporttest.NewStore()
	}
	a.world.Restart(state)
	a.start(t)
	a.run.Update(a.world.State(), nil) // the restored state
}

// step is one event, and the quiet time after it.
type step struct {
	what   string
	reason string
	wait   time.Duration
}

var steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{"faulty", "faulty", "healthy", "healthy", "error", "restart", "lose", "away",
			"back"}).Draw(t, "what"),
		reason: rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "reason"),
		wait:   time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second,
	}
}), 1, 25)

// TestTransitionTimeIsExact: for any sequence of observations, outages and restarts, the last patch carries the time at
// which the status really changed.
func TestTransitionTimeIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		drawn := steps.Draw(rt, "steps")
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = transitions(t, drawn) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// transitions runs steps and returns the differences at the end.
func transitions(t *testing.T, steps []step) string {
	a := &agent{world: reporttest.NewWorld(), node: reporttest.NewNode(), store: reporttest.NewStore()}
	a.start(t)
	defer func() { a.stop() }()
	var m model
	away := false
	for _, s := range steps {
		switch s.what {
		case "faulty":
			a.observe(&m, nil, s.reason)
		case "healthy":
			a.observe(&m, nil)
		case "error":
			a.observe(&m, fmt.Errorf("error of %s", s.reason))
		case "restart":
			a.restart(t, false)
		case "lose":
			// Only a condition on the Node can be restored.
			if !away && m.status != "" && m.status != "Unknown" {
				time.Sleep(10 * time.Minute)
				a.restart(t, true)
				a.again(&m)
			}
		case "away":
			away = true
			a.node.Fail(errors.New("away"))
		case "back":
			away = false
			a.node.Mend()
		}
		time.Sleep(s.wait)
	}
	a.node.Mend()
	time.Sleep(2 * time.Hour)
	if m.status == "" {
		return ""
	}
	got := a.node.Shown("ReadonlyFilesystem")
	if got == nil || got.Status != m.status || !got.LastTransitionTime.Time.Equal(m.moved) {
		return fmt.Sprintf("the node shows %s, want %s since %s", shownLine(got), m.status, at(m.moved))
	}
	return ""
}

// observe runs the check, and gives the model the tracker's result.
func (a *agent) observe(m *model, err error, reasons ...string) {
	state, updates := a.world.Run("disk", err, reasons...)
	a.run.Update(state, updates)
	c := state["disk"]
	if c.Conclusive.IsZero() {
		return // never known: TestGraceEnds tests the report
	}
	m.see(map[finding.Status]corev1.ConditionStatus{
		finding.StatusFaulty: "True", finding.StatusHealthy: "False", finding.StatusUnknown: "Unknown",
	}[c.Status], time.Now())
}

// again repeats the last observation of the check.
func (a *agent) again(m *model) {
	if m.status == "True" {
		a.observe(m, nil, "A")
	} else {
		a.observe(m, nil)
	}
}
