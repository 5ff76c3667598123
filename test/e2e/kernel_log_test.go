package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
)

// TestRestartMissesNothing: kernel log lines from the time while the agent is stopped, upgraded or killed are found
// after its start, exactly once, and earlier reports are not repeated.
func TestRestartMissesNothing(t *testing.T) {
	ofTheProcess(t, "test/daemonset shows that a pod reads the kernel's log and keeps its state")
	l := openLab(t)
	a := install(t, l, harness.Overrides{"checks": map[string]any{"kernel-log": map[string]any{"programs": true}}})
	// the longest name of a link
	device := func(n int) string { return fmt.Sprintf("e2e%d-%d", os.Getpid()%100000, n) }
	for n, between := range []struct {
		name string
		end  func() error
	}{{"the first start", nil}, {"an orderly restart", a.Stop}, {"a crash", a.Kill}} {
		if between.end != nil {
			if err := between.end(); err != nil {
				t.Fatalf("%s: %v", between.name, err)
			}
		}
		writeDuplicate(t, device(n))
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := harness.WaitFor(t.Context(), "each line to be found once after "+between.name,
			func() error {
				return eachOnce(t.Context(), a, device, n+1)
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	writeDuplicate(t, device(0)) // the same again, while the agent runs: one finding, one event
	err := harness.WaitFor(t.Context(), "the second line to count", func() error {
		s, err := a.Status(t.Context())
		if err != nil {
			return err
		}
		for _, f := range s.Findings {
			if f.Subject.Name == device(0) && f.Facts["count"] == "2" {
				return nil
			}
		}
		return fmt.Errorf("findings: %+v", s.Findings)
	})
	if err != nil {
		t.Error(err)
	}
}

func writeDuplicate(t *testing.T, device string) {
	t.Helper()
	// without an end of line the kernel would wait for more
	line := fmt.Sprintf("<4>IPv6: %s: IPv6 duplicate address fe80::1 used by 02:42:ac:11:00:02 detected!\n", device)
	if err := os.WriteFile("/dev/kmsg", []byte(line), 0); err != nil {
		t.Fatal(err)
	}
}

// eachOnce returns nil if there is one finding and one event for each of the first devices.
func eachOnce(ctx context.Context, a *harness.Agent, device func(int) string, devices int) error {
	s, err := a.Status(ctx)
	if err != nil {
		return err
	}
	events, err := a.Events(ctx)
	if err != nil {
		return err
	}
	for n := range devices {
		findings, reported := 0, 0
		for _, f := range s.Findings {
			if f.Subject.Name == device(n) {
				findings++
				if f.Facts["count"] != "1" {
					return fmt.Errorf("%s was written once and counts %s", device(n), f.Facts["count"])
				}
			}
		}
		for _, e := range events {
			if strings.Contains(e.Message, device(n)+":") {
				reported += max(e.Count, 1)
			}
		}
		if findings != 1 || reported != 1 {
			return fmt.Errorf("%s: %d findings, %d events", device(n), findings, reported)
		}
	}
	return nil
}
