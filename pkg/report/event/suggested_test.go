package event

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// The event of a fault has an annotation with the suggested action; the event of its end has none.
func TestEventNamesTheSuggestedAction(t *testing.T) {
	u := finding.Update{Kind: finding.Raised, Finding: finding.Finding{Check: "disk", Severity: finding.Fatal,
		Subject: finding.Subject{Kind: "disk", Name: "nvme0"}, Reason: "NVMeDead",
		SuggestedAction: finding.SuggestReplaceHardware, Part: "serial number S4EV"}}
	for kind, want := range map[finding.UpdateKind]string{finding.Raised: "replace-hardware: serial number S4EV",
		finding.Changed: "replace-hardware: serial number S4EV", finding.Cleared: ""} {
		u.Kind = kind
		n, ok := noteOf(u)
		if !ok {
			t.Fatal("no note")
		}
		e := eventOf("node", report.Item{ID: "1", Count: 1, First: time.Unix(1, 0)}, n)
		if got := e.Annotations["nodeagent/suggested-action"]; got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}
