package repair

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Budgets and waits of repairs do not depend on the wall clock: a jump of ten years ahead frees none of them.
func TestBudgetsOutliveAJumpOfTheWallClock(t *testing.T) {
	s := Defaults()
	begin := hosttest.Now()
	done := func(action Name, finding string, result release.Result) attempt {
		return attempt{Record: Record{At: begin, Action: action, Check: "c", Subject: subject, Finding: finding}, result: result}
	}
	cure := Action{Name: "cure", PerDay: func(Settings) int { return 1 }}
	for name, test := range map[string]struct {
		action Action
		all    []attempt
		change func(*Settings)
		want   string
	}{
		"stop after failures": {cure, []attempt{done("x", "1", release.Failed), done("y", "2", release.Failed),
			done("z", "3", release.Failed)}, nil, "3 repairs have failed within a day"},
		"perHour": {cure, []attempt{done("x", "1", Verified)}, func(s *Settings) { s.PerHour = 1 }, "1 repairs in the last hour"},
		"perDay": {cure, []attempt{done("x", "1", Verified)}, func(s *Settings) { s.PerDay = 1 },
			"1 repairs in the last day"},
		"per action": {cure, []attempt{done("cure", "1", Verified)}, nil, "cure was done 1 times"},
		"back-off":   {Action{Name: "cure"}, []attempt{done("cure", "1", release.Refused)}, nil, "next try after"},
		"at most once": {Action{Name: "cure", Every: time.Hour}, []attempt{done("cure", "1", Verified)}, nil,
			"at most once in"},
	} {
		if test.change != nil {
			test.change(&s)
		}
		step := Step{Action: "cure", Check: "c", Subject: subject, Mode: release.On, action: test.action,
			believed: finding.Believed{ID: "9", Raised: finding.Timestamp{Boot: begin.Boot}}}
		jumped := begin
		jumped.Wall, jumped.SinceBoot = begin.Wall.AddDate(10, 0, 0), begin.SinceBoot+time.Minute
		if why := blocked(step, test.all, s, jumped); !strings.Contains(why, test.want) {
			t.Errorf("%s: %q, want %q", name, why, test.want)
		}
		jumped.Boot, jumped.SinceBoot = "another", time.Minute // and a boot with a clock that is wrong
		step.believed.Raised.SinceBoot = -time.Hour
		if why := blocked(step, test.all, s, jumped); why == "" {
			t.Errorf("%s: a boot frees it", name)
		}
		s = Defaults()
	}
}

// A container is old enough only by the clock since boot.
func TestContainerAgeOutlivesAJump(t *testing.T) {
	n := newContainerNode(t)
	n.aboutDaemonSet()
	text, err := n.tools.Host.Files.Text("/proc/50/stat")
	if err != nil {
		t.Fatal(err)
	}
	n.write("/proc/50/stat", strings.Replace(text, " 0 100 1000 ", " 0 17274000 1000 ", 1)+"\n") // one minute ago
	n.expect(50, "was started 1m0s ago, less than 5m0s")
}
