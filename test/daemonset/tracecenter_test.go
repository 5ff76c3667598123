package daemonset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// tracecenter's chart is installed, follows the cluster and answers the commands of its notes; its ServiceAccount has all
// rights that it needs. An upgrade keeps certificate and verdicts, and only the volume and the certificate outlive the
// release.
func TestTraceCenter(t *testing.T) {
	need.Flag(t, *withLong, "-long: installs another chart")
	c := &center{cluster: open(t), replicas: &centerPods{}, until: context.WithoutCancel(t.Context())}
	if !t.Run("image", func(t *testing.T) { testImage(t, c.cluster); c.importProgram(t, "tracecenter") }) {
		return
	}
	c.services(t)
	c.createVolume(t, "tracecenter-0")
	t.Cleanup(func() {
		c.removeTrace(t)
		c.kubectl(t, "delete", "-n", namespace, "secret/tracecenter-tls", "pvc/data-tracecenter-0", "pv/tracecenter-0", "--ignore-not-found", "--timeout=10m")
		if err := os.RemoveAll(c.volumes[0]); err != nil {
			t.Error(err)
		}
	})
	c.installTrace(t, "")
	if err := c.RunPod(t.Context(), "default", "traced", "sleep", "100000"); err != nil {
		t.Fatal(err)
	}
	delivered := func() error {
		out := c.trace(t, "pod", "default/traced")
		if !strings.Contains(out, "creation of default/traced: delivered") {
			return errors.New(out)
		}
		return nil
	}
	await(t, "the verdict", delivered)
	await(t, "the health of the cluster", func() error {
		if out := c.trace(t, "health"); !strings.Contains(out, "Healthy since") || !strings.Contains(out, "1 nodes, 0 faulty") {
			return errors.New(out)
		}
		return nil
	})
	if out := c.trace(t, "login", "--name", "ada"); !strings.Contains(out, "https://localhost:10687/login") {
		t.Error(out)
	}
	if log := c.kubectl(t, "logs", "-n", namespace, "tracecenter-0"); strings.Contains(log, "orbidden") {
		t.Errorf("a right is missing: %s", log)
	}
	certificate := c.kubectl(t, "get", "secret", "-n", namespace, "tracecenter-tls", "-o", "jsonpath={.data}")
	c.installTrace(t, "overrides.reasons.ImageNotFound.class=system")
	await(t, "the verdict after an upgrade", delivered)
	if c.kubectl(t, "get", "secret", "-n", namespace, "tracecenter-tls", "-o", "jsonpath={.data}") != certificate {
		t.Error("an upgrade has made another certificate")
	}
	c.removeTrace(t)
	if left := c.kubectl(t, "get", "all,configmaps,secrets,roles,rolebindings,serviceaccounts", "-A", "-l", "app.kubernetes.io/name=tracecenter", "-o", "name"); strings.TrimSpace(left) !=
		"secret/tracecenter-tls" {
		t.Errorf("left: %s", left)
	}
}

func (c *center) installTrace(t *testing.T, settings string) {
	t.Helper()
	c.helm(t, "upgrade", "--install", "tracecenter", filepath.Join(c.repo, "packaging/kubernetes/tracecenter"), "--namespace", namespace,
		"--create-namespace", "--set", "image.pullPolicy=Never,"+settings, "--wait", "--timeout=10m")
}

func (c *center) removeTrace(t *testing.T) {
	t.Helper()
	c.helm(t, "uninstall", "tracecenter", "--namespace", namespace, "--ignore-not-found", "--cascade=foreground")
	c.kubectl(t, "wait", "-n", namespace, "--for=delete", "statefulsets,pods,services,configmaps,serviceaccounts", "-l",
		"app.kubernetes.io/name=tracecenter", "--timeout=10m")
}

// trace runs a command of the chart's notes, and returns its output, or its error.
func (c *center) trace(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), append([]string{"-n", namespace, "exec", "tracecenter-0", "--", "/usr/bin/tracecenter", "--dir", "/var/lib/tracecenter/data",
		"--server", "https://localhost:10687", "--ca", "/run/tracecenter/tls/ca.crt"}, args...)...)
	if err != nil {
		return fmt.Sprintf("%s: %v", out, err)
	}
	return string(out)
}
