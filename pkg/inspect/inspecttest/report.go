package inspecttest

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// NoErrors fails the test for each source that could not be read.
func NoErrors(t *testing.T, report object.Report) {
	t.Helper()
	for _, failure := range report.Errors {
		t.Errorf("%s: %s", failure.What, failure.Error)
	}
}

// Whys returns the verdicts on the objects of a pod, with their reasons, a line each.
func Whys(report object.Report, uid string) string {
	var b strings.Builder
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			b.WriteString(string(o.Kind) + " " + o.ID + ": " + string(o.Verdict) + ": " + o.Why + "\n")
		}
	}
	return b.String()
}
