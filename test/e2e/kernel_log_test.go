package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// TestRestartMissesNothing: what the kernel's log says while the agent is stopped, upgraded or killed is found when it is
// back, once and only once, and what was told before is not told again.
func TestRestartMissesNothing(t *testing.T) {
	l := openLab(t)
	// A rule of its own: what earlier tests wrote into the kernel's log must not use up the budget of its events.
	a := install(t, l, harness.Overrides{
		"checks": map[string]any{"kernel-log": map[string]any{"programs": true}},
		"rules": []any{map[string]any{
			"id": "e2e-line", "reason": "EndToEndLine", "severity": "warning", "summary": "a test says so", "kind": "line",
			"patterns": []string{fmt.Sprintf(`^e2e of process %d: (?P<subject>[a-z0-9-]+) failed$`, os.Getpid())},
		}},
	})
	line := func(n int) string { return fmt.Sprintf("e2e-%d-%d", os.Getpid(), n) }
	for n, between := range []struct {
		name string
		end  func() error
	}{{"the first start", nil}, {"an orderly restart", a.Stop}, {"a crash", a.Kill}} {
		if between.end != nil {
			if err := between.end(); err != nil {
				t.Fatalf("%s: %v", between.name, err)
			}
		}
		say(t, line(n))
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := harness.WaitFor(t.Context(), 30*time.Second, "each line to be found once after "+between.name, func() error {
			return eachOnce(t.Context(), a, line, n+1)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	say(t, line(0)) // the same again, while the agent runs: one finding, one event
	err := harness.WaitFor(t.Context(), 10*time.Second, "the second line to count", func() error {
		s, err := a.Status(t.Context())
		if err != nil {
			return err
		}
		for _, f := range s.Findings {
			if f.Subject.Name == line(0) && f.Facts["count"] == "2" {
				return nil
			}
		}
		return fmt.Errorf("findings: %+v", s.Findings)
	})
	if err != nil {
		t.Error(err)
	}
}

func say(t *testing.T, line string) {
	t.Helper()
	// Without its end the kernel would wait for the rest of the line, and nobody would be shown it before the next one.
	if err := os.WriteFile("/dev/kmsg", fmt.Appendf(nil, "<4>e2e of process %d: %s failed\n", os.Getpid(), line), 0); err != nil {
		t.Fatal(err)
	}
}

// eachOnce returns nil when there is one finding and one event for each of the first lines.
func eachOnce(ctx context.Context, a *harness.Agent, line func(int) string, lines int) error {
	s, err := a.Status(ctx)
	if err != nil {
		return err
	}
	events, err := a.Events(ctx)
	if err != nil {
		return err
	}
	for n := range lines {
		findings, told := 0, 0
		for _, f := range s.Findings {
			if f.Subject.Name == line(n) {
				findings++
				if f.Facts["count"] != "1" {
					return fmt.Errorf("%s was written once and counts %s", line(n), f.Facts["count"])
				}
			}
		}
		for _, e := range events {
			if strings.Contains(e.Message, line(n)+" failed") {
				told += max(e.Count, 1)
			}
		}
		if findings != 1 || told != 1 {
			return fmt.Errorf("%s: %d findings, %d events", line(n), findings, told)
		}
	}
	return nil
}
