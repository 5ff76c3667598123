package daemonset

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/test/harness"
)

// testSight compares the agent in the pod with the agent as a process of the host with the cluster administrator's
// permissions: no check is blind only in the pod.
func testSight(t *testing.T, c *cluster) {
	c.install(t, true, "config.checks.hung-mounts.every=2s", "rights.kubelet=true")
	hung := hosttest.HangingFUSE(t) // to compare the calls that may hang, which children make, too
	dir := filepath.Join(c.Dir, "sight")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	onHost := &harness.Agent{Lab: c.Lab, Dir: dir, Binary: c.binary, Config: filepath.Join(dir, "config.yaml")}
	t.Cleanup(func() {
		if err := onHost.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := onHost.Configure(harness.Overrides{
		"paths":  map[string]any{"kubeconfig": c.Paths.AdminKubeconfig, "kubeletRoot": c.Paths.KubeletRoot},
		"checks": map[string]any{"hung-mounts": map[string]any{"every": "2s"}},
		"report": map[string]any{"conditions": map[string]any{"enabled": false},
			"events": map[string]any{"enabled": false}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := onHost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer, err := onHost.CLI(t.Context(), "ready", "--wait=90s")
	if err != nil || answer.Code != 0 {
		t.Fatalf("the agent on the host: %v, exit code %d: %s", err, answer.Code, answer.Stdout)
	}
	await(t, "each check to see in the pod what it sees on the host", func() error {
		inPod, err := c.status(t.Context())
		if err != nil {
			return err
		}
		host, err := onHost.Status(t.Context())
		if err != nil {
			return err
		}
		if diff := cmp.Diff(sights(host), sights(inPod)); diff != "" {
			return fmt.Errorf("checks see less or more (-on the host +in the pod):\n%s", diff)
		}
		for _, s := range []harness.Status{host, inPod} {
			if !slices.ContainsFunc(s.Findings, func(f harness.Finding) bool {
				return f.Check == "hung-mounts" && f.Subject.Name == hung
			}) {
				return fmt.Errorf("agent %d does not find that %s hangs", s.PID, hung)
			}
		}
		t.Logf("%d checks, %d are not applicable or could not tell on the host", len(host.Checks),
			len(sights(host)))
		return nil
	})
	testSightByHand(t, c, onHost)
}

// sights lists the checks that could not tell or are not applicable.
func sights(s harness.Status) []string {
	var lines []string
	for _, c := range s.Checks {
		switch {
		case c.Error != "" || c.Status == "unknown":
			lines = append(lines, c.Check+": could not tell: "+c.Error)
		case c.Status == "not-applicable":
			lines = append(lines, c.Check+": absent: "+c.Why)
		}
	}
	slices.Sort(lines)
	return lines
}

// checked is the part of the output of "nodeagent check -o json" that the test reads.
type checked struct {
	Findings []struct {
		Check, Reason string
		Subject       struct{ Kind, Name string }
	}
	Errors        []struct{ Check, Error string }
	NotApplicable []struct{ Check, Why string }
}

// exec has kubectl run a command of the agent in the pod and decodes its output.
func (c *cluster) exec(t *testing.T, into any, verb string) error {
	t.Helper()
	out, failed := c.Kubectl(t.Context(), "exec", "-n", namespace, "daemonset/nodeagent", "--", link, verb, "-o",
		"json")
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("nodeagent %s: %w, %w\n%s", verb, err, failed, out)
	}
	return nil // its exit code is 1 if this machine has faults, which does not matter here
}

// testSightByHand compares a command that kubectl runs in the pod with the same command on the host.
func testSightByHand(t *testing.T, c *cluster, onHost *harness.Agent) {
	t.Helper()
	await(t, "nodeagent check to see in the pod what it sees on the host", func() error {
		var inPod, host checked
		if err := c.exec(t, &inPod, "check"); err != nil {
			return err
		}
		if _, err := onHost.JSON(t.Context(), &host, "check"); err != nil {
			return err
		}
		if diff := cmp.Diff(host, inPod); diff != "" {
			return fmt.Errorf("checks see less or more (-on the host +in the pod):\n%s", diff)
		}
		return nil
	})
	var gates harness.Inspected
	if err := c.exec(t, &gates, "inspect"); err != nil {
		t.Fatal(err)
	}
	for _, g := range gates.Gates {
		if !g.Open {
			t.Errorf("nodeagent inspect in the pod: gate %s is shut: %s", g.Name, g.Why)
		}
	}
	for _, e := range gates.Errors {
		t.Errorf("nodeagent inspect in the pod: %s: %s", e.What, e.Error)
	}
}
