package diskspace

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// TestFillingSeverity: a prediction is a warning only if both time and space are short. Either alone is normal for a
// busy or a well filled disk.
func TestFillingSeverity(t *testing.T) {
	for _, test := range []struct {
		name   string
		free   uint64 // percent
		fullIn time.Duration
		want   finding.Severity
	}{
		{"both are short", 10, 2 * time.Hour, finding.Warning},
		{"full soon, with much room yet", 18, 2 * time.Hour, finding.Info},
		{"little room, that lasts", 10, 12 * time.Hour, finding.Info},
		{"neither", 18, 12 * time.Hour, finding.Info},
	} {
		s := space{answer: probe.ProbeAnswer{TotalBytes: 100 << 30, FreeBytes: test.free << 30}}
		fault, found := s.filling(DefaultSettings(), test.fullIn)
		if !found || fault.severity != test.want || fault.belowRaise {
			t.Errorf("%s: %v %+v, want %s", test.name, found, fault, test.want)
		}
	}
}
