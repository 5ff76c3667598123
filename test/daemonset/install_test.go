package daemonset

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/test/harness"
)

// testImage makes the image and imports it: no image is pulled.
func testImage(t *testing.T, c *cluster) {
	archive := filepath.Join(t.TempDir(), "nodeagent.tar")
	c.run(t, "go", "run", "./packaging/image", "-o", archive, "-ref", reference, c.binary)
	for _, file := range []string{archive, c.binary} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MB", filepath.Base(file), float64(info.Size())/1e6)
		if info.Size() > maxImage {
			t.Errorf("%s has %d bytes, more than %d", file, info.Size(), maxImage)
		}
	}
	c.run(t, c.Paths.Ctr, "--address", c.Paths.ContainerdSocket, "--namespace", "k8s.io", "images", "import", archive)
	if out := c.run(t, c.Paths.Ctr, "--address", c.Paths.ContainerdSocket, "--namespace", "k8s.io", "images",
		"check"); !strings.Contains(out, reference) {
		t.Errorf("containerd does not have %s:\n%s", reference, out)
	}
}

// labManifests are the plain manifests for the lab, with a configuration that overrides the lab's settings.
func (c *cluster) labManifests(t *testing.T, over harness.Overrides) string {
	t.Helper()
	settings := harness.Overrides{
		"stateDir": c.stateDir(),
		"paths":    map[string]any{"initPID": c.init, "kubeletRoot": c.Paths.KubeletRoot},
		"report":   map[string]any{"conditions": map[string]any{"spread": "1s"}},
	}
	maps.Copy(settings, over)
	text, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := harness.Manifests(c.Lab, reference, string(text), c.stateDir())
	if err != nil {
		t.Fatal(err)
	}
	return manifests
}

// testManifests installs a reporting agent from scratch with kubectl apply.
func testManifests(t *testing.T, c *cluster) {
	if err := c.KubectlApply(t.Context(), c.labManifests(t, nil)); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "rollout", "status", "-n", namespace, "daemonset/nodeagent", "--timeout=10m")
	c.await1(t, "the agent of the manifests to be ready", ready)
	c.awaitCondition(t, "ReadonlyFilesystem", "False")
	c.kubectl(t, "delete", "-f", filepath.Join(c.repo, "packaging/kubernetes/manifests/nodeagent.yaml"),
		"--ignore-not-found", "--timeout=10m")
}

// testChart installs a reporting agent from scratch with one command.
func testChart(t *testing.T, c *cluster) {
	began := time.Now()
	c.install(t, true)
	p := c.await1(t, "the agent of the chart to be ready", ready)
	t.Logf("from nothing to ready: %s", time.Since(began).Round(time.Second))
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("%d restarts", n)
	}
	c.awaitCondition(t, "ReadonlyFilesystem", "False")
	c.awaitCondition(t, "KubeletUnhealthy", "False")
}

// awaitCondition waits until the Node has a condition.
func (c *cluster) awaitCondition(t *testing.T, name, status string) harness.Condition {
	t.Helper()
	var got harness.Condition
	await(t, "condition "+name+"="+status, func() error {
		var err error
		got, err = (&harness.Agent{Lab: c.Lab}).Condition(t.Context(), name)
		if err == nil && got.Status != status {
			err = fmt.Errorf("is %+v", got)
		}
		return err
	})
	return got
}
