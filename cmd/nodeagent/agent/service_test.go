package agent

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestSummary(t *testing.T) {
	checks := []detect.Check{{ID: "a"}, {ID: "b"}}
	raised := func(severity finding.Severity) map[string]*finding.Believed {
		f := finding.Finding{Check: "a", Severity: severity}
		return map[string]*finding.Believed{"x": {Finding: f, Raised: finding.Timestamp{Boot: "b"}}}
	}
	for name, test := range map[string]struct {
		state finding.State
		want  string
	}{
		"no check has run": {finding.State{}, "2 of 2 checks cannot tell: see nodeagent status"},
		"one check has run": {finding.State{"a": {Status: finding.StatusHealthy}},
			"1 of 2 checks cannot tell: see nodeagent status"},
		"all is well": {finding.State{"a": {Status: finding.StatusHealthy}, "b": {Status: finding.StatusNotApplicable}},
			"nothing is wrong with this node"},
		"a fault": {finding.State{"a": {Status: finding.StatusFaulty, Subjects: raised(finding.Fatal)},
			"b": {Status: finding.StatusUnknown}},
			"1 fatal, 1 of 2 checks cannot tell: see nodeagent status"},
		"a source is lost": {finding.State{"a": {Status: finding.StatusHealthy}, "b": {Status: finding.StatusHealthy},
			"source-mounts": {Status: finding.StatusHealthy, Subjects: raised(finding.Warning)}},
			"1 warning: see nodeagent status"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := summary(checks, test.state); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
