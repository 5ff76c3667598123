package report

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The message of a condition names the suggested action, even if the fault's own message is long.
func TestConditionNamesTheSuggestedAction(t *testing.T) {
	for _, message := range []string{"disk nvme0 is dead", strings.Repeat("long ", 400)} {
		believed := func(name string) *finding.Believed {
			return &finding.Believed{Raised: finding.Timestamp{Boot: "b"}, Finding: finding.Finding{Check: "disk",
				Subject: finding.Subject{Kind: "disk", Name: name}, Severity: finding.Fatal, Reason: "NVMeDead",
				Message: message, SuggestedAction: finding.SuggestReplaceHardware, Part: "serial number S4EV"}}
		}
		v := Evaluate(finding.Condition{Type: "DiskBroken"}, &finding.CheckState{Status: finding.StatusFaulty,
			Subjects: map[string]*finding.Believed{"a": believed("a"), "b": believed("b")}})
		const want = " (suggested action: replace-hardware: serial number S4EV) (and 1 more)"
		if !strings.HasSuffix(v.Message, want) || len(v.Message) > MaxMessage {
			t.Errorf("%d bytes: %q", len(v.Message), v.Message)
		}
	}
}
