package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

func TestEvaluate(t *testing.T) {
	timestamp := func(minute int) finding.Timestamp {
		return finding.Timestamp{Wall: time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC), Boot: "boot",
			SinceBoot: time.Duration(minute) * time.Minute}
	}
	check := func(s finding.Status, minute int, believed ...finding.Believed) *finding.CheckState {
		c := &finding.CheckState{Status: s, Since: timestamp(minute), Conclusive: timestamp(1),
			Subjects: map[string]*finding.Believed{}}
		for i := range believed {
			c.Subjects[believed[i].Subject.Name] = &believed[i]
		}
		return c
	}
	fault := func(name string, severity finding.Severity, minute int) finding.Believed {
		return finding.Believed{Raised: timestamp(minute), Finding: finding.Finding{
			Check: "c", Subject: finding.Subject{Kind: "k", Name: name}, Severity: severity, Reason: "Reason" + name,
			Message: "message " + name,
		}}
	}
	naming := finding.Condition{HealthyReason: "Fine", HealthyMessage: "all is fine"}
	healthy, absent := check(finding.StatusHealthy, 3), check(finding.StatusNotApplicable, 4)
	blind := &finding.CheckState{Status: finding.StatusUnknown, Since: timestamp(5), Err: "cannot\nread",
		Conclusive: timestamp(1)}
	for _, test := range []struct {
		name   string
		checks []*finding.CheckState
		want   report.Verdict
	}{
		{"healthy", []*finding.CheckState{healthy}, report.Verdict{Status: finding.StatusHealthy, Since: timestamp(3),
			Sole: true, Reason: "Fine", Message: "all is fine"}},
		{"not applicable", []*finding.CheckState{absent}, report.Verdict{Status: finding.StatusNotApplicable,
			Since: timestamp(4), Sole: true}},
		{"blind", []*finding.CheckState{blind}, report.Verdict{Status: finding.StatusUnknown, Since: timestamp(5),
			Sole: true, Reason: "CheckCouldNotTell", Message: "cannot read"}},
		{"never observed", []*finding.CheckState{nil}, report.Verdict{Status: finding.StatusUnknown, Sole: true,
			Blank: true, Reason: "CheckCouldNotTell", Message: "no conclusive observation yet"}},
		{"the oldest fatal one is shown, others are counted, warnings are not",
			[]*finding.CheckState{check(finding.StatusFaulty, 2, fault("A", finding.Fatal, 9),
				fault("B", finding.Fatal, 8), fault("C", finding.Warning, 1))},
			report.Verdict{Status: finding.StatusFaulty, Since: timestamp(2), Sole: true, Reason: "ReasonB",
				Message: "message B (and 1 more)"}},
		{"faulty beats blind", []*finding.CheckState{blind,
			check(finding.StatusFaulty, 7, fault("A", finding.Fatal, 7)), healthy},
			report.Verdict{Status: finding.StatusFaulty, Since: timestamp(7), Reason: "ReasonA", Message: "message A"}},
		{"blind beats healthy", []*finding.CheckState{healthy, blind}, report.Verdict{Status: finding.StatusUnknown,
			Since: timestamp(5), Reason: "CheckCouldNotTell", Message: "cannot read"}},
		{"healthy beats not applicable", []*finding.CheckState{absent, healthy},
			report.Verdict{Status: finding.StatusHealthy, Since: timestamp(4), Reason: "Fine", Message: "all is fine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, report.Evaluate(naming, test.checks...)); diff != "" {
				t.Error(diff)
			}
		})
	}

	long := fault("A", finding.Fatal, 1)
	long.Reason, long.Message = strings.Repeat("R", 5000), strings.Repeat("é", 5000)
	v := report.Evaluate(naming, check(finding.StatusFaulty, 1, long, fault("B", finding.Fatal, 2)))
	if len(v.Reason) > report.MaxReason || len(v.Message) > report.MaxMessage ||
		!strings.HasSuffix(v.Message, "… (and 1 more)") {
		t.Errorf("reason of %d bytes, message of %d: …%s", len(v.Reason), len(v.Message), v.Message[len(v.Message)-20:])
	}
}
