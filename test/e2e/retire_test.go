package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
)

// TestRetire: a permanently removed agent removes its own marks from the Node, and no others.
func TestRetire(t *testing.T) {
	ofTheProcess(t, "docs/install-daemonset.md has another procedure, which test/daemonset follows")
	l := openLab(t)
	a := install(t, l, nil)
	// An agent of another test may have left it: then this one would not have to write it.
	if _, err := l.Kubectl(t.Context(), "patch", "node", l.NodeName, "--subresource=status", "--type=strategic",
		"--patch", `{"status":{"conditions":[{"$patch":"delete","type":"KubeletUnhealthy"}]}}`); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await := func(what string, there bool) {
		t.Helper()
		err := harness.WaitFor(t.Context(), what, func() error {
			c, err := a.Condition(t.Context(), "KubeletUnhealthy")
			if err == nil && (c.Type != "") != there {
				err = fmt.Errorf("condition %+v", c)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	await("the condition to be written", true)
	retire := func() harness.Answer {
		t.Helper()
		answer, err := a.CLI(t.Context(), "retire")
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if answer := retire(); answer.Code != 2 || !strings.Contains(answer.Stderr, "an agent runs") {
		t.Errorf("while the agent runs: exit code %d, %s", answer.Code, answer.Stderr)
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if answer := retire(); answer.Code != 0 ||
		!strings.Contains(answer.Stdout, "condition removed: KubeletUnhealthy\n") {
		t.Errorf("exit code %d: %s%s", answer.Code, answer.Stdout, answer.Stderr)
	}
	await("the condition to be gone", false)
	if c, err := a.Condition(t.Context(), "Ready"); err != nil || c.Type == "" {
		t.Errorf("kubelet's own condition: %+v, %v", c, err)
	}
	if answer := retire(); answer.Code != 0 || answer.Stdout != "" {
		t.Errorf("once more: exit code %d: %s%s", answer.Code, answer.Stdout, answer.Stderr)
	}
}
