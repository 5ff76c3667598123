package mutatetest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Ctr runs ctr in a namespace of containerd.
func (c *Containerd) Ctr(namespace string, args ...string) {
	c.t.Helper()
	out, err := exec.Command("ctr", append([]string{"-a", c.Socket, "-n", namespace}, args...)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("ctr -n %s %q: %v: %s", namespace, args, err, out)
	}
}

// Ghost runs a container in a cgroup with the labels that the CRI plugin gives one of a pod, which CRI never lists: it
// has made it by itself, and loads those that it has lost only when containerd starts. Without a command it ignores
// SIGTERM. No kind: it has no labels at all, as one that was made by hand.
func (c *Containerd) Ghost(uid, kind, cgroup string, command ...string) (id string) {
	c.t.Helper()
	id = Hex(c.t, 64)
	run := []string{"run", "-d", "--null-io", "--runc-root", filepath.Join(c.Dir, "runc"),
		"--cgroup", filepath.Join(cgroup, id)}
	if kind != "" {
		for _, label := range append(podLabels(kind, uid), "io.kubernetes.pod.name=p-"+uid[:8]) {
			run = append(run, "--label", label)
		}
	}
	c.t.Cleanup(func() {
		out, err := exec.Command("ctr", "-a", c.Socket, "-n", "k8s.io", "task", "rm", "-f", id).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not found") && !c.t.Failed() {
			c.t.Errorf("task %s: %v: %s", id, err, out)
		}
	})
	c.Ctr("k8s.io", append(append(run, Image, id), command...)...)
	return id
}

// Bundle is the directory of a container's task.
func (c *Containerd) Bundle(id string) string {
	return filepath.Join(c.Dir, "state/io.containerd.runtime.v2.task/k8s.io", id)
}

// Await waits until something is so.
func Await(t testing.TB, so func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatal("it did not come to be")
		case <-tick.C:
		}
	}
}
