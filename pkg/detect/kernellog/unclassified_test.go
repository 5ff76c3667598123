package kernellog

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const unclassified = "newdriver 0000:5e:00.0: the engine is stuck"

// TestUnclassifiedNeedsTheLevel: what no rule knows is reported when the kernel itself called it an error, in a machine
// that has started; never by its words alone.
func TestUnclassifiedNeedsTheLevel(t *testing.T) {
	tally := NewTally(newTable(t))
	for _, c := range []struct {
		text  string
		level Level
		up    time.Duration
		want  string
	}{
		{unclassified, LevelError, time.Hour, "unclassified-device-error"},
		{unclassified, LevelUnknown, time.Hour, ""},
		{unclassified, LevelBelow, time.Hour, ""},
		{unclassified, LevelError, time.Minute, ""},
		{"newpart: the engine is stuck", LevelError, time.Hour, "unclassified-kernel-error"},
		{"newpart: the engine runs", LevelError, time.Hour, ""},
		// another rule knows these, and leaves them out
		{"mlx5_core 0000:5e:00.0: PTP failed", LevelError, time.Hour, ""},
		{"pcieport 0000:5e:00.0: BAR 7: failed to assign", LevelError, time.Hour, ""},
		// a program's words
		{"nginx[12]: newpart: the engine is stuck", LevelError, time.Hour, ""},
	} {
		m, _ := tally.Observe(Record{Text: []byte(c.text), Level: c.level, At: c.up, Up: c.up, UpKnown: true})
		got := ""
		if m.Rule != nil {
			got = m.Rule.ID
		}
		if got != c.want {
			t.Errorf("level %d, up %v: %q, want %q: %s", c.level, c.up, got, c.want, c.text)
		}
	}
}

// TestUnclassifiedStaysSmall: it is information, and a few subjects at a time, however many devices fail.
func TestUnclassifiedStaysSmall(t *testing.T) {
	l := NewLog(newTable(t))
	for i := range 100 {
		l.Observe(LogRecord{Sequence: uint64(i), Up: time.Hour, Level: LevelError,
			Text: fmt.Sprintf("newdriver 0000:%02x:00.0: the engine is stuck", i)})
	}
	findings := l.Findings(time.Hour, nil)
	if len(findings) != 8 {
		t.Errorf("%d findings", len(findings))
	}
	for _, f := range findings {
		if f.Severity != finding.Info || f.Reason != "UnclassifiedKernelError" || f.Subject.Kind != "device" {
			t.Errorf("%+v", f)
		}
	}
}

// TestLastRulesAreLast: what a rule of one fault knows is never called unclassified.
func TestLastRulesAreLast(t *testing.T) {
	table, last := rules.Kernel(), false
	for _, r := range table {
		if last && !r.LevelKnown {
			t.Errorf("%s comes after the last rules", r.ID)
		}
		last = last || r.LevelKnown
		if r.LevelKnown && (r.Severity != finding.Info || r.AtMost == 0 || r.BootGrace == 0 || r.ConfirmedBy != "") {
			t.Errorf("%s: %+v", r.ID, r)
		}
	}
}
