package mutatetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Ctr runs ctr in a namespace of containerd and returns its output.
func (c *Containerd) Ctr(namespace string, args ...string) string {
	c.t.Helper()
	out, err := c.ctr(namespace, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *Containerd) ctr(namespace string, args ...string) (string, error) {
	out, err := exec.Command("ctr", append([]string{"-a", c.Socket, "-n", namespace}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ctr -n %s %q: %w: %s", namespace, args, err, out)
	}
	return string(out), err
}

// Ghost runs a container in a cgroup with the labels that the CRI plugin gives to a pod's container, which CRI never
// lists: Ghost made it itself, and CRI loads lost containers only when containerd starts. Without a command it ignores
// SIGTERM. If kind is empty it has no labels, like one made by hand.
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
		if out, err := c.ctr("k8s.io", "task", "rm", "-f", id); err != nil && !strings.Contains(out, "not found") &&
			!c.t.Failed() {
			c.t.Error(err)
		}
	})
	c.Ctr("k8s.io", append(append(run, Image, id), command...)...)
	return id
}

// Bundle is the directory of a container's task.
func (c *Containerd) Bundle(id string) string {
	return filepath.Join(c.Dir, "state/io.containerd.runtime.v2.task/k8s.io", id)
}

// Await waits until a condition is true.
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

// Lose makes containerd lose a container as if its removal was interrupted: the processes end, the bundle gets a dot
// before its name, so that containerd ignores it, and the record and the snapshot go while the root filesystem is
// mounted. It returns the bundle.
func (c *Containerd) Lose(id string) string {
	c.t.Helper()
	bundle := c.Bundle(id)
	text, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
	if err != nil {
		c.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	task, err := (&host.Host{}).ProcStat(pid)
	if err != nil {
		c.t.Fatal(err)
	}
	hidden := filepath.Join(filepath.Dir(bundle), "."+id)
	c.Signal(syscall.SIGSTOP)
	err = errors.Join(syscall.Kill(task.PPID, syscall.SIGKILL), syscall.Kill(pid, syscall.SIGKILL), os.Rename(bundle, hidden))
	c.Signal(syscall.SIGCONT)
	if err != nil {
		c.t.Fatal(err)
	}
	Await(c.t, func() bool {
		out, err := c.ctr("k8s.io", "task", "ls")
		return err == nil && !strings.Contains(out, id) && syscall.Kill(pid, 0) != nil
	})
	c.Ctr("k8s.io", "container", "rm", id)
	return hidden
}
