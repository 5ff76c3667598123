// Package daemonset runs the agent as shipped for Kubernetes: the image that packaging/image makes, installed by the
// chart and by the plain manifests, under the real kubelet of the lab.
package daemonset

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

var withLab = flag.Bool("lab", false, "run the tests that use a real cluster; needs root")

var containerd = flag.String("containerd", "", "run this containerd in the lab: 1 for Debian's 1.6, 2 for a current one")

const (
	reference = "localhost/nodeagent:dev" // the name in the chart and the manifests
	maxImage  = 45 << 20                  // bytes, archive and unpacked
	namespace = "nodeagent"
	runDir    = "/run/nodeagent"
	socket    = runDir + "/nodeagent.sock"
)

// cluster is the lab with the tools that the tests need to install the agent.
type cluster struct {
	*lab.Lab
	repo     string
	binary   string
	helmPath string
	values   []string // files with values of the chart
	init     int      // the process that stands in for the host's init: process 1 of this machine may not let its namespaces be opened
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run brings up the lab if it is wanted and not running. Without it every test skips by name.
func run(m *testing.M) (code int) {
	if !*withLab || os.Geteuid() != 0 {
		return m.Run()
	}
	ctx := context.Background()
	_, absent := lab.Open("")
	l, err := lab.Up(ctx, lab.Options{Containerd: *containerd, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if absent != nil {
		defer func() {
			if err := l.Down(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
	}
	return m.Run()
}

func TestDaemonSet(t *testing.T) {
	c := open(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T, *cluster)
	}{
		{"image", testImage},
		{"manifests", testManifests},
		{"chart", testChart},
		{"on the host", testOnHost},
		{"sight", testSight},
		{"command on the host", testCommand},
		{"failing disk", testDisk},
		{"own node only", testOwnNodeOnly},
		{"leftovers", testLeftovers},
		{"killed", testKilled},
		{"wrong configuration", testWrongConfiguration},
		{"memory limit", testMemoryLimit},
		{"beside a package", testBesidePackage},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, c) }) {
			t.Logf("the agent's log:\n%s", c.logs(t))
			return
		}
	}
}

func open(t *testing.T) *cluster {
	t.Helper()
	need.Flag(t, *withLab, "-lab: uses a real cluster")
	need.Root(t, "uses a real cluster")
	if conn, err := net.Dial("unix", socket); err == nil {
		_ = conn.Close()
		t.Fatalf("an agent answers on %s: the test would be in its way", socket)
	}
	if _, err := os.Stat(runDir); os.IsNotExist(err) {
		t.Cleanup(func() { removeDir(t, runDir) })
	}
	l, err := lab.Open("")
	if err == nil {
		var missing []string
		if missing, err = l.Resume(t.Context()); len(missing) > 0 {
			t.Logf("an earlier test left these components stopped, or the agent ended them: %v", missing)
		}
	}
	if err == nil {
		err = harness.WaitFor(t.Context(), "the node to be healthy", func() error { return l.Healthy(t.Context()) })
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l}
	t.Cleanup(func() {
		c.uninstall(t)
		removeDir(t, c.stateDir())
	})
	if c.repo, err = harness.Repo(); err != nil {
		t.Fatal(err)
	}
	if c.binary, err = harness.Build(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if c.init, err = l.PID("etcd"); err != nil {
		t.Fatal(err)
	}
	c.uninstall(t)
	c.hurry(t)
	return c
}

// hasty makes the apiserver shorten two waits of the chart and the manifests, which stay as shipped: the period of the
// readiness probe, and how long a pod must be ready before a rollout continues. Both are 10 s.
const hasty = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: hasty}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [daemonsets]}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "add", path: "/spec/minReadySeconds", value: 1},
        JSONPatch{op: "add", path: "/spec/template/spec/containers/0/readinessProbe/periodSeconds", value: 1}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: hasty}
spec: {policyName: hasty}
`

// hurry makes the cluster hasty until the test ends.
func (c *cluster) hurry(t *testing.T) {
	t.Helper()
	if err := c.KubectlApply(t.Context(), hasty); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kubectl(t, "delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "hasty",
			"--ignore-not-found")
	})
}

// stateDir is the state directory of the tests' agents: another agent may use the default directory.
func (c *cluster) stateDir() string { return filepath.Join(c.Dir, "daemonset-state") }

// removeDir removes the agent's files and links in its own directory, but no trees.
func removeDir(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return
	}
	for _, e := range entries {
		if e.Type()&fs.ModeDir == 0 {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("what the agent left: %v", err)
	}
}

// run executes a command in the checkout.
func (c *cluster) run(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	cmd.Dir = c.repo
	home := filepath.Join(c.Dir, "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Paths.AdminKubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+
		home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, append([]string{c.helmProgram(t)}, args...)...)
}

func (c *cluster) helmProgram(t *testing.T) string {
	t.Helper()
	if c.helmPath == "" {
		path, err := lab.Helm(t.Context(), lab.Options{Repo: c.repo, Log: t.Output()})
		if err != nil {
			t.Fatal(err)
		}
		c.helmPath = path
	}
	return c.helmPath
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// install installs the chart. Settings override those of the lab.
func (c *cluster) install(t *testing.T, wait bool, settings ...string) {
	t.Helper()
	host, port, _ := strings.Cut(strings.TrimPrefix(c.Server(), "https://"), ":")
	args := []string{
		"upgrade", "--install", "nodeagent", filepath.Join(c.repo, "packaging/kubernetes/chart"), "--namespace",
		namespace, "--create-namespace",
		"--set", "apiserver.host=" + host, "--set", "apiserver.port=" + port, // there is no kube-proxy
		"--set", "image.pullPolicy=Never",
		"--set", "config.paths.initPID=" + strconv.Itoa(c.init),
		"--set", "config.stateDir=" + c.stateDir(),
		"--set", "config.paths.kubeletRoot=" + c.Paths.KubeletRoot, // other tests may run a kubelet too
		"--set", "config.paths.cniNetworksDir=" + c.Paths.CNINetworksDir,
		"--set", "config.report.conditions.spread=1s",
		"--set", "config.checks.filesystem-readonly.needed={" + c.Dir + "}", // the loop devices of failedDisk
		// Seconds where a real node takes ten minutes.
		"--set",
		"config.inspect.every=2s,config.inspect.grace=6s,config.inspect.listSpacing=2s," +
			"config.inspect.runningSpacing=4s,config.inspect.kubeletUptime=5s,config.inspect.runtimeUptime=2s",
	}
	for _, file := range c.values {
		args = append(args, "--values", file)
	}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	if wait {
		args = append(args, "--wait", "--timeout=10m")
	}
	c.helm(t, args...)
}

// uninstall removes the agent from the cluster, however it was installed, and the permissions that other tests gave to
// agents of the host: helm does not take over objects that it has not created.
func (c *cluster) uninstall(t *testing.T) {
	t.Helper()
	if c.repo == "" {
		return
	}
	// Not --wait, which may miss that the last object is gone, and then waits in vain (helm 4.2.1). kubectl waits below.
	c.helm(t, "uninstall", "nodeagent", "--namespace", namespace, "--ignore-not-found", "--cascade=foreground")
	for _, file := range []string{"manifests/nodeagent.yaml", "rbac.yaml", "rights.yaml"} {
		c.kubectl(t, "delete", "-f", filepath.Join(c.repo, "packaging/kubernetes", file), "--ignore-not-found",
			"--timeout=10m")
	}
}

// pod has the fields of the agent's pod that the tests read.
type pod struct {
	Metadata struct{ Name, UID string }
	Status   struct {
		Conditions        []struct{ Type, Status string }
		ContainerStatuses []struct {
			ContainerID  string
			RestartCount int
			Ready        bool
			State        struct {
				Running *struct{ StartedAt time.Time }
			}
			LastState struct {
				Terminated *struct {
					Reason   string
					ExitCode int
				}
			}
		}
	}
}

// pods lists the agent's pods.
func (c *cluster) pods(t *testing.T) []pod {
	t.Helper()
	var list struct{ Items []pod }
	out := c.kubectl(t, "get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name=nodeagent", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() error) {
	t.Helper()
	if err := harness.WaitFor(t.Context(), what, holds); err != nil {
		t.Fatal(err)
	}
}

// await1 waits until there is exactly one pod, and ok holds for it, and returns it.
func (c *cluster) await1(t *testing.T, what string, ok func(pod) bool) pod {
	t.Helper()
	var found pod
	await(t, what, func() error {
		pods := c.pods(t)
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return fmt.Errorf("%d pods", len(pods))
		}
		if found = pods[0]; !ok(found) {
			return fmt.Errorf("pod %+v", found.Status)
		}
		return nil
	})
	return found
}

func ready(p pod) bool { return p.Status.ContainerStatuses[0].Ready }

func (c *cluster) logs(t *testing.T) string {
	out, err := c.Kubectl(context.WithoutCancel(t.Context()), "logs", "-n", namespace, "daemonset/nodeagent",
		"--tail=60")
	return fmt.Sprint(string(out), err)
}
