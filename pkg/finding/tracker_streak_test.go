package finding

import (
	"testing"
	"time"
)

// TestFlapWindowEnds: raises of more than an hour ago hold nothing up.
func TestFlapWindowEnds(t *testing.T) {
	tracker := NewTracker(nil, nil)
	bad := []Finding{disk(Fatal, "ReadOnly")}
	second := 0
	look := func(findings []Finding, after int) []string {
		second += after
		return told(tracker.Observe(Observation{Check: "disk", At: at(second), Findings: findings}))
	}
	for range freeRaises {
		look(bad, 1)
		if got := look(nil, 1); len(got) == 0 || got[0] != "cleared ReadOnly" {
			t.Fatalf("not cleared at once: %q", got)
		}
	}
	look(bad, 1)
	if got := look(nil, 1); got != nil {
		t.Fatalf("a subject that flaps is cleared at once: %q", got)
	}
	if got := look(nil, int(flapHold.Seconds())); len(got) == 0 {
		t.Fatal("not cleared after the hold")
	}
	look(bad, int(flapWindow.Seconds()))
	if got := look(nil, 1); len(got) == 0 || got[0] != "cleared ReadOnly" {
		t.Errorf("raises of the hour before hold it up: %q", got)
	}
}

// TestStreaksEndWithTheBoot: looks of before a reboot do not add to those after it, neither for raising nor for
// clearing.
func TestStreaksEndWithTheBoot(t *testing.T) {
	hold := Hold{Runs: 2}
	bad := []Finding{disk(Fatal, "ReadOnly")}
	after := func(seconds int) Timestamp {
		return Timestamp{Wall: at(1000 + seconds).Wall, Boot: "boot-2", SinceBoot: time.Duration(seconds) * time.Second}
	}
	raising := NewTracker(map[string]Policy{"disk": {Raise: hold}}, nil)
	raising.Observe(Observation{Check: "disk", At: at(1), Findings: bad})
	if got := told(raising.Observe(Observation{Check: "disk", At: after(1), Findings: bad})); len(got) > 0 &&
		got[0] == "raised ReadOnly" {
		t.Errorf("raised by one look in each boot: %q", got)
	}
	if got := told(raising.Observe(Observation{Check: "disk", At: after(2), Findings: bad})); len(got) == 0 ||
		got[0] != "raised ReadOnly" {
		t.Errorf("not raised by two looks of one boot: %q", got)
	}

	clearing := NewTracker(map[string]Policy{"disk": {Clear: hold}}, nil)
	clearing.Observe(Observation{Check: "disk", At: at(1), Findings: bad})
	clearing.Observe(Observation{Check: "disk", At: at(2)})
	if got := told(clearing.Observe(Observation{Check: "disk", At: after(1)})); len(got) > 0 &&
		got[0] == "cleared ReadOnly" {
		t.Errorf("cleared by one look in each boot: %q", got)
	}
	if got := told(clearing.Observe(Observation{Check: "disk", At: after(2)})); len(got) == 0 ||
		got[0] != "cleared ReadOnly" {
		t.Errorf("not cleared by two looks of one boot: %q", got)
	}
}
