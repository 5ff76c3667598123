package event

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A fault carries the action for others; a fault without one looks as before.
func TestSuggestedActionOfAFault(t *testing.T) {
	f := finding.Finding{Check: "nvme-health", Subject: finding.Subject{Kind: "disk", Name: "nvme0"},
		Severity: finding.Fatal, Reason: "NVMeDead", SuggestedAction: finding.SuggestReplaceHardware,
		Part: "disk nvme0, serial number S4EV"}
	for want, f := range map[string]finding.Finding{
		`"suggestedAction":"replace-hardware","part":"disk nvme0, serial number S4EV"`: f,
		``: {Check: "dns", Subject: f.Subject, Severity: finding.Warning, Reason: "Slow"},
	} {
		e, ok := OfUpdate(finding.Update{ID: "1", Kind: finding.Raised, Finding: f,
			At: finding.Timestamp{Wall: time.Unix(1, 0)}})
		if !ok {
			t.Fatal("no event")
		}
		e.Cluster, e.Node, e.Stream, e.Sequence = "c", "n", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 1
		data, err := e.Encode()
		must(t, err)
		if text := string(data); want != "" && !strings.Contains(text, want) || want == "" && strings.Contains(text,
			"suggestedAction") {
			t.Errorf("%s has not %s", text, want)
		}
		back, err := Decode(data)
		if fault, _ := back.Data.(Fault); err != nil || fault.SuggestedAction != f.SuggestedAction || fault.Part != f.Part {
			t.Errorf("%+v, %v", back, err)
		}
	}
}
