package daemonset

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestDocumentation runs every command of docs/install-daemonset.md, from top to bottom, as a reader would, with the lab's
// kubectl, helm and containerd on the path.
func TestDocumentation(t *testing.T) {
	c := open(t)
	text, err := os.ReadFile(filepath.Join(c.repo, "docs/install-daemonset.md"))
	if err != nil {
		t.Fatal(err)
	}
	tools := c.tools(t)
	for i, part := range strings.Split("\n"+string(text), "\n```") {
		kind, block, _ := strings.Cut(part, "\n")
		if i%2 == 0 {
			continue
		}
		for command := range strings.Lines(block) {
			command = strings.TrimSpace(command)
			switch kind {
			case "sh":
			case "sh build":
				command = strings.Replace(command, "make ", "make IMAGE="+reference+" ", 1) // the name that the manifests have
			default:
				t.Fatalf("what is a block of kind %q?", kind)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", command)
			cmd.Dir, cmd.Env = c.repo, append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			t.Logf("$ %s\n%s", command, out)
			if err != nil {
				t.Fatalf("%v; the agent said:\n%s", err, c.logs(t))
			}
		}
	}
}

// tools makes a directory with the programs that a reader of the page has, for the lab: helm is told what is special about
// it, and so is what kubectl applies.
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
	helm := filepath.Join(dir, "real-helm")
	c.run(t, "go", "-C", "test/helm", "build", "-o", helm, "helm.sh/helm/v4/cmd/helm")
	applied := filepath.Join(dir, "applied.yaml")
	lab := filepath.Join(dir, "values.yaml")
	for name, text := range map[string]string{
		lab:     string(values),
		applied: c.labManifests(t, nil),
		filepath.Join(dir, "helm"): fmt.Sprintf(`#!/bin/sh
export KUBECONFIG=%q HELM_CACHE_HOME=%[2]q HELM_CONFIG_HOME=%[2]q HELM_DATA_HOME=%[2]q
case "$1" in install|upgrade) exec %[3]q "$@" --values %[4]q ;; esac
exec %[3]q "$@"
`, c.Paths.AdminKubeconfig, dir, helm, lab),
		filepath.Join(dir, "kubectl"): fmt.Sprintf(`#!/bin/sh
[ "$1" = apply ] && set -- apply --filename %q
exec %s "$@"
`, applied, strings.Join(c.KubectlCommand(), " ")),
		filepath.Join(dir, "ctr"): "#!/bin/sh\nexec /usr/bin/ctr --address " + strconv.Quote(c.Paths.ContainerdSocket) + " \"$@\"\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
