package daemonset

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/page"
)

// TestDocumentation runs every command of docs/install-daemonset.md, from top to bottom, like a reader, with the lab's
// kubectl, helm and containerd on the path.
func TestDocumentation(t *testing.T) {
	c := open(t)
	commands, err := page.Commands(filepath.Join(c.repo, "docs/install-daemonset.md"))
	if err != nil {
		t.Fatal(err)
	}
	tools := c.tools(t)
	t.Cleanup(func() { _ = os.Remove(filepath.Join(c.repo, "bin/retire.json")) })
	c.kubectl(t, "patch", "node", c.NodeName, "--subresource=status", "--patch", foreignCondition)
	for _, command := range commands {
		line := command.Line
		switch command.Kind {
		case "sh":
		case "sh build":
			line = strings.Replace(line, "make ", "make ARCHES="+runtime.GOARCH+" IMAGE="+reference+" ", 1) // as in the manifests
		default:
			t.Fatalf("what is a block of kind %q?", command.Kind)
		}
		if strings.HasPrefix(line, "kubectl delete --filename") {
			c.awaitCondition(t, "ReadonlyFilesystem", "False") // a condition for the agent to remove
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", line)
		cmd.Dir, cmd.Env = c.repo, append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		t.Logf("$ %s\n%s", line, out)
		if err != nil {
			t.Fatalf("%v; the agent's log:\n%s", err, c.logs(t))
		}
	}
	testNothingLeft(t, c)
}

// foreignCondition is another writer's condition on the Node.
const foreignCondition = `{"status":{"conditions":[{"type":"SomebodyElses","status":"True",` +
	`"reason":"Theirs","message":"not ours"}]}}`

// testNothingLeft fails if the cluster still has objects of the agent at the end of the page, or has lost others'
// objects.
func testNothingLeft(t *testing.T, c *cluster) {
	t.Helper()
	var types []string
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "node", c.NodeName, "--output",
		`jsonpath=["{.status.conditions[*].type}"]`)), &types); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(types[0])
	slices.Sort(got)
	if diff := cmp.Diff([]string{"DiskPressure", "MemoryPressure", "PIDPressure", "Ready", "SomebodyElses"},
		got); diff != "" {
		t.Errorf("conditions of the Node (-want +got):\n%s", diff)
	}
	const kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
	if out := c.kubectl(t, "get", kinds, "--selector", "app.kubernetes.io/name=nodeagent", "--output",
		"name"); out != "" {
		t.Errorf("in the cluster:\n%s", out)
	}
	if out := c.kubectl(t, "get", "roles,rolebindings,configmaps,leases", "--all-namespaces", "--output",
		"name"); strings.Contains(out, "nodeagent") {
		t.Errorf("in its namespaces:\n%s", out)
	}
	if out := c.kubectl(t, "get", "namespace", namespace, "--ignore-not-found", "--output", "name"); out != "" {
		t.Errorf("there is %s", out)
	}
}

// tools makes a directory with the programs that a reader of the page has, for the lab: helm gets the lab's own values,
// and kubectl applies manifests that have them.
func (c *cluster) tools(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	host, port, _ := strings.Cut(strings.TrimPrefix(c.Server(), "https://"), ":")
	values, err := yaml.Marshal(map[string]any{
		"apiserver": map[string]string{"host": host, "port": port},
		"config": map[string]any{
			"stateDir": c.stateDir(), "paths": map[string]any{"initPID": c.init, "kubeletRoot": c.Paths.KubeletRoot},
			"report": map[string]any{"metrics": map[string]string{"listen": "127.0.0.1:10690"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	applied := filepath.Join(dir, "applied.yaml")
	lab := filepath.Join(dir, "values.yaml")
	for name, text := range map[string]string{
		lab:     string(values),
		applied: c.labManifests(t, nil),
		filepath.Join(dir, "helm"): fmt.Sprintf(`#!/bin/sh
export KUBECONFIG=%q HELM_CACHE_HOME=%[2]q HELM_CONFIG_HOME=%[2]q HELM_DATA_HOME=%[2]q
case "$1" in install|upgrade) exec %[3]q "$@" --values %[4]q ;; esac
exec %[3]q "$@"
`, c.Paths.AdminKubeconfig, dir, c.helmProgram(t), lab),
		filepath.Join(dir, "kubectl"): fmt.Sprintf(`#!/bin/sh
[ "$1" = apply ] && set -- apply --filename %q
exec %s "$@"
`, applied, strings.Join(c.KubectlCommand(), " ")),
		filepath.Join(dir, "ctr"): "#!/bin/sh\nexec " + c.Paths.Ctr + " --address " +
			strconv.Quote(c.Paths.ContainerdSocket) + " \"$@\"\n",
	} {
		if err := executable.Write(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
