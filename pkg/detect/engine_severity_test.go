package detect

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// TestSeverityOfTheUserWins: a severity that the user has set for a check applies to all its findings.
func TestSeverityOfTheUserWins(t *testing.T) {
	check := Check{ID: "x", Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
		return []finding.Finding{
			{Subject: finding.Subject{Kind: "a", Name: "1"}, Severity: finding.Fatal, Reason: "A", Message: "m"},
			{Subject: finding.Subject{Kind: "a", Name: "2"}, Severity: finding.Info, Reason: "B", Message: "m"},
		}, nil
	}}
	for severity, want := range map[finding.Severity][]finding.Severity{
		"":              {finding.Fatal, finding.Info},
		finding.Warning: {finding.Warning, finding.Warning},
	} {
		check.Severity = severity
		var got []finding.Severity
		for _, f := range RunOnce(t.Context(), fakeHost(), []Check{check}, nil)[0].Findings {
			got = append(got, f.Severity)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("set to %q (-want +got):\n%s", severity, diff)
		}
	}
}
