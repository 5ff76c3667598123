package daemonset

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
)

// probes is the address of the chart's probes.
const probes = "127.0.0.1:10690"

// wrongRule is a configuration that only the agent can reject: helm's schema accepts it.
var wrongRule = []string{"config.rules[0].id=wrong", "config.rules[0].reason=Wrong", "config.rules[0].summary=wrong",
	"config.rules[0].patterns[0]=^("}

// testWrongConfiguration gives agents a configuration that they reject: running ones continue, a new one starts with
// the last good one, reports that, and is not ready, so that a rollout stops.
func testWrongConfiguration(t *testing.T, c *cluster) {
	c.install(t, true, "config.checks.load.loadPerCPU=6")
	c.await1(t, "the agent to be ready", ready)
	before := c.awaitCondition(t, "ReadonlyFilesystem", "False")
	running := agentPID(t)

	// Somebody replaces the ConfigMap itself. An agent that has read it keeps the old configuration.
	name := c.kubectl(t, "get", "daemonset", "-n", namespace, "nodeagent", "-o",
		"jsonpath={.spec.template.spec.volumes[?(@.name=='config')].configMap.name}")
	c.replaceConfigMap(t, name, "remediate: {mode: [\n")
	status, err := c.status(t.Context())
	if err != nil || status.PID != running || finds(status, "AgentConfigInvalid") {
		t.Errorf("the running agent: process %d, it was %d; %v, findings %v", status.PID, running, err, status.Findings)
	}
	c.await1(t, "the running agent to stay ready", ready)

	// A rollout of a wrong configuration stops at its first pods, and a good one repairs it.
	c.install(t, false, wrongRule...)
	c.goesOn(t, running, "rules.0.patterns")
	if after := c.awaitCondition(t, "ReadonlyFilesystem",
		"False"); !after.LastTransitionTime.Equal(before.LastTransitionTime) {
		t.Errorf("a new pod moved lastTransitionTime from %s to %s: the condition was removed meanwhile",
			before.LastTransitionTime,
			after.LastTransitionTime)
	}
	// A rollout that continues does so after a second: see hasty.
	if out, err := c.Kubectl(t.Context(), "rollout", "status", "-n", namespace, "daemonset/nodeagent",
		"--timeout=5s"); err == nil {
		t.Errorf("the rollout of a wrong configuration is through: %s", out)
	}
	c.install(t, true)
	c.await1(t, "the agent to be ready again", ready)
}

// goesOn waits until a new agent runs with the last good configuration: it has a finding about that, is not ready, is
// not restarted, and its program names the mistake.
func (c *cluster) goesOn(t *testing.T, before int, mistake string) {
	t.Helper()
	var status harness.Status
	await(t, "an agent that refuses its configuration", func() error {
		var err error
		if status, err = c.status(t.Context()); err != nil {
			return err
		}
		if status.PID == before || !finds(status, "AgentConfigInvalid") {
			return fmt.Errorf("process %d, before it was %d; findings %+v", status.PID, before, status.Findings)
		}
		return nil
	})
	for _, f := range status.Findings {
		if f.Reason == "AgentConfigInvalid" {
			t.Log(f.Message)
			if !strings.Contains(f.Message, "works with the last good configuration") {
				t.Errorf("it does not go on with the last good configuration: %s", f.Message)
			}
		}
	}
	p := c.await1(t, "its pod", func(p pod) bool { return p.Status.ContainerStatuses[0].State.Running != nil })
	if ready(p) || p.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod: %+v", p.Status.ContainerStatuses[0])
	}
	if out := c.probe(t, "/healthz"); out != "ok" {
		t.Errorf("kubelet would restart it: %s", out)
	}
	if out := c.probe(t, "/readyz"); !strings.Contains(out, "refused") {
		t.Errorf("readyz answers %q", out)
	}
	out, err := c.Kubectl(t.Context(), "exec", "-n", namespace, "daemonset/nodeagent", "--", link, "config", "validate")
	if err == nil || !strings.Contains(err.Error(), mistake) {
		t.Errorf("config validate: want %q, got %v %s", mistake, err, out)
	}
}

func finds(s harness.Status, reason string) bool {
	for _, f := range s.Findings {
		if f.Reason == reason {
			return true
		}
	}
	return false
}

// replaceConfigMap circumvents the immutability of the ConfigMap.
func (c *cluster) replaceConfigMap(t *testing.T, name, text string) {
	t.Helper()
	object, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": namespace},
		"data": map[string]string{"config.yaml": text},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "configmap", "-n", namespace, name)
	if err := c.KubectlApply(t.Context(), string(object)); err != nil {
		t.Fatal(err)
	}
}

// probe sends the same request as kubelet.
func (c *cluster) probe(t *testing.T, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+probes+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
