package finding

import (
	"testing"
	"time"
)

// TestFlapWindowEnds: raises more than an hour ago delay no clear.
func TestFlapWindowEnds(t *testing.T) {
	tracker := NewTracker(nil, nil)
	bad := []Finding{disk(Fatal, "ReadOnly")}
	second := 0
	observe := func(findings []Finding, after int) []string {
		second += after
		return summary(tracker.Observe(Observation{Check: "disk", At: at(second), Findings: findings}))
	}
	for range freeRaises {
		observe(bad, 1)
		if got := observe(nil, 1); len(got) == 0 || got[0] != "cleared ReadOnly" {
			t.Fatalf("not cleared at once: %q", got)
		}
	}
	observe(bad, 1)
	if got := observe(nil, 1); got != nil {
		t.Fatalf("a subject that flaps is cleared at once: %q", got)
	}
	if got := observe(nil, int(flapHold.Seconds())); len(got) == 0 {
		t.Fatal("not cleared after the hold")
	}
	observe(bad, int(flapWindow.Seconds()))
	if got := observe(nil, 1); len(got) == 0 || got[0] != "cleared ReadOnly" {
		t.Errorf("raises of the hour before hold it up: %q", got)
	}
}

// TestStreaksEndWithTheBoot: observations before a reboot do not add to those after it, neither for raising nor for
// clearing.
func TestStreaksEndWithTheBoot(t *testing.T) {
	hold := Hold{Runs: 2}
	bad := []Finding{disk(Fatal, "ReadOnly")}
	after := func(seconds int) Timestamp {
		return Timestamp{Wall: at(1000 + seconds).Wall, Boot: "boot-2", SinceBoot: time.Duration(seconds) * time.Second}
	}
	raising := NewTracker(map[string]Policy{"disk": {Raise: hold}}, nil)
	raising.Observe(Observation{Check: "disk", At: at(1), Findings: bad})
	if got := summary(raising.Observe(Observation{Check: "disk", At: after(1), Findings: bad})); len(got) > 0 &&
		got[0] == "raised ReadOnly" {
		t.Errorf("raised by one observation in each boot: %q", got)
	}
	if got := summary(raising.Observe(Observation{Check: "disk", At: after(2), Findings: bad})); len(got) == 0 ||
		got[0] != "raised ReadOnly" {
		t.Errorf("not raised by two observations of one boot: %q", got)
	}

	clearing := NewTracker(map[string]Policy{"disk": {Clear: hold}}, nil)
	clearing.Observe(Observation{Check: "disk", At: at(1), Findings: bad})
	clearing.Observe(Observation{Check: "disk", At: at(2)})
	if got := summary(clearing.Observe(Observation{Check: "disk", At: after(1)})); len(got) > 0 &&
		got[0] == "cleared ReadOnly" {
		t.Errorf("cleared by one observation in each boot: %q", got)
	}
	if got := summary(clearing.Observe(Observation{Check: "disk", At: after(2)})); len(got) == 0 ||
		got[0] != "cleared ReadOnly" {
		t.Errorf("not cleared by two observations of one boot: %q", got)
	}
}
