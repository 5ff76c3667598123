package daemonset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/harness"
)

// link is the path of the agent's program on the host while it runs.
const link = runDir + "/nodeagent"

// agentPID returns the agent's process.
func agentPID(t *testing.T) int {
	t.Helper()
	var pid int
	await(t, "the agent's program and socket", func() error {
		if _, err := os.Stat(link); err != nil {
			return err
		}
		var err error
		pid, err = listener(socket)
		return err
	})
	return pid
}

// listener returns the process that listens on a Unix socket.
func listener(socket string) (int, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, optErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// testOnHost inspects the agent's process: it is in the host's namespaces and in its container's cgroups, and has no
// mounts of the host.
func testOnHost(t *testing.T, c *cluster) {
	pid := agentPID(t)
	for _, ns := range []string{"mnt", "net", "uts", "ipc", "cgroup", "pid", "user"} {
		want, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.init, ns))
		got, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err1 != nil || err2 != nil || got != want {
			t.Errorf("namespace %s is %s (%v), the host's %s (%v)", ns, got, err2, want, err1)
		}
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || string(comm) != "nodeagent\n" {
		t.Errorf("the process is called %q, %v", comm, err)
	}
	p := c.await1(t, "the agent", ready)
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	limit := cgroupFile(t, pid, "memory", "memory.limit_in_bytes", "memory.max")
	data, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(limit, p.Metadata.UID) || !strings.Contains(limit, id) ||
		strings.TrimSpace(string(data)) != strconv.Itoa(256<<20) {
		t.Errorf("the agent's memory limit %s is %s; want 256 MiB in the cgroup of container %s", limit, data, id)
	}
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("%d restarts", n)
	}
}

// cgroupFile returns the path of a process's cgroup file, by its name in version 1 or 2.
func cgroupFile(t *testing.T, pid int, controller, v1, v2 string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), controller):
			return filepath.Join("/sys/fs/cgroup", controller, fields[2], v1)
		case len(fields) == 3 && fields[1] == "":
			if file := filepath.Join("/sys/fs/cgroup", fields[2], v2); exists(file) {
				return file
			}
		}
	}
	t.Fatalf("process %d has no %s cgroup:\n%s", pid, controller, data)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// testCommand calls the agent's program like its users: on the host, and through kubectl.
func testCommand(t *testing.T, c *cluster) {
	var status harness.Status
	// Its exit code is 1 if this machine has faults, which does not matter here.
	out, failed := c.Kubectl(t.Context(), "exec", "-n", namespace, "daemonset/nodeagent", "--", link, "status", "-o",
		"json")
	if err := json.Unmarshal(out, &status); err != nil {
		t.Fatalf("%v, %v\n%s", err, failed, out)
	}
	if pid := agentPID(t); status.PID != pid {
		t.Errorf("status is of process %d, the agent is %d", status.PID, pid)
	}
	// These read the host's mounts, kubelet and the runtime over the host's network and sockets, and /dev/kmsg, which
	// the device cgroup of a container without privileges does not allow.
	healthy := map[string]bool{"filesystem-readonly": true, "kubelet-health": true, "runtime-health": true,
		"source-kernel-log": true, "source-mounts": true}
	for _, check := range status.Checks {
		if healthy[check.Check] && check.Status != "healthy" {
			t.Errorf("%s is %s: %s", check.Check, check.Status, check.Error)
		}
		delete(healthy, check.Check)
	}
	if len(healthy) > 0 {
		t.Errorf("not among the checks: %v", healthy)
	}
	if out := c.run(t, link, "version"); !strings.Contains(out, "nodeagent") {
		t.Errorf("%s version: %s", link, out)
	}
}

// failedDisk returns a failed filesystem of the host, until the test ends.
func failedDisk(t *testing.T, parent string) *harness.Disk {
	t.Helper()
	dir := filepath.Join(parent, "failing-disk")
	disk, err := harness.NewDisk(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err) // removed by the test already
		}
		_ = os.Remove(dir)
	})
	if err := disk.Fail(); err != nil {
		t.Fatal(err)
	}
	return disk
}

// testDisk makes a filesystem of the host fail that the pod has never mounted. Meanwhile the Node has a taint, also
// after a person has removed it. The bench prints the times.
func testDisk(t *testing.T, c *cluster) {
	c.install(t, true, "rights.kubelet=true", "rights.taint=true", "config.report.taint.mode=on", "config.report.taint.hold=2s")
	disk := failedDisk(t, c.Dir)
	began := time.Now()
	await(t, "a taint", func() error {
		if c.taint(t) == ":" {
			return errors.New("there is none")
		}
		return nil
	})
	t.Logf("read-only disk to taint: %s at most", time.Since(began).Round(10*time.Millisecond))
	condition := c.awaitCondition(t, "ReadonlyFilesystem", "True")
	t.Logf("after %s: %s", time.Since(began).Round(10*time.Millisecond), condition.Message)
	if !strings.Contains(condition.Message, disk.Mount) {
		t.Errorf("the condition does not name %s: %s", disk.Mount, condition.Message)
	}
	c.awaitTaint(t, condition.Reason+":NoSchedule")
	c.kubectl(t, "taint", "node", c.NodeName, "nodeagent.github.io/unhealthy-")
	c.awaitTaint(t, condition.Reason+":NoSchedule")
	if err := disk.Unmount(); err != nil {
		t.Fatal(err)
	}
	if err := disk.MountAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitCondition(t, "ReadonlyFilesystem", "False")
	c.awaitTaint(t, ":") // no taint
}

// taint returns the value and the effect of the agent's taint of the Node; ":" if there is none.
func (c *cluster) taint(t *testing.T) string {
	t.Helper()
	const mine = `jsonpath={.spec.taints[?(@.key=="nodeagent.github.io/unhealthy")].value}:` +
		`{.spec.taints[?(@.key=="nodeagent.github.io/unhealthy")].effect}`
	return c.kubectl(t, "get", "node", c.NodeName, "-o", mine)
}

// awaitTaint waits until the agent's taint of the Node has this value and effect.
func (c *cluster) awaitTaint(t *testing.T, want string) {
	t.Helper()
	await(t, "the taint "+want, func() error {
		if got := c.taint(t); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// testLeftovers makes a pod leave objects behind; the agent finds them, reports what it would do, and once it is
// allowed to, releases them, but no object of a living pod beside it.
func testLeftovers(t *testing.T, c *cluster) {
	const living = "daemonset-living"
	beside, err := harness.NewVictim(t.Context(), c.Lab, living)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.WaitPodRunning(t.Context(), "default", living)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DeletePod(context.WithoutCancel(t.Context()), "default", living); err != nil {
			t.Error(err)
		}
	})
	victim, err := harness.NewVictim(t.Context(), c.Lab, "daemonset-victim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = victim.Freeze("THAWED") // if the test failed before the agent released the pod
	})
	if err := victim.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the agent to find what the pod left", func() error {
		status, err := c.status(t.Context())
		if err != nil {
			return err
		}
		for _, f := range status.Findings {
			if f.Check == "leftovers" && strings.Contains(f.Subject.UID+f.Subject.Name+f.Message, victim.UID) {
				t.Log(f.Message)
				return nil
			}
		}
		return fmt.Errorf("findings %+v", status.Findings)
	})
	status, err := c.status(t.Context())
	if err != nil || status.Release.Mode != "dry-run" {
		t.Errorf("mode %q, %v", status.Release.Mode, err)
	}
	if traces, err := victim.Traces(t.Context()); err != nil || len(traces) == 0 {
		t.Errorf("something was released in dry-run: %v, %v", traces, err)
	}
	c.install(t, true, "rights.kubelet=true", "config.remediate.mode=on", "config.remediate.ownerGrace=5s",
		"config.remediate.containerGrace=2s", "config.remediate.processGrace=2s", "config.remediate.retryAfter=1s",
		"config.remediate.podsPerHour=1000")
	await(t, "the agent to release it", func() error {
		traces, err := victim.Traces(t.Context())
		if err == nil && len(traces) > 0 {
			err = fmt.Errorf("still there: %v", traces)
		}
		return err
	})
	if err := victim.CheckCanary(); err != nil {
		t.Errorf("user data: %v", err)
	}
	after, err := c.WaitPodRunning(t.Context(), "default", living)
	if err = errors.Join(err, beside.CheckCanary()); err != nil || !slices.Equal(after.ContainerIDs,
		before.ContainerIDs) {
		t.Errorf("the pod that lives: before %+v, after %+v, %v", before, after, err)
	}
	c.install(t, true, "rights.kubelet=true") // dry-run again
}

func (c *cluster) status(ctx context.Context) (harness.Status, error) {
	a := harness.Agent{Lab: c.Lab, Binary: link, Config: os.DevNull}
	var s harness.Status
	_, err := a.JSON(ctx, &s, "status")
	return s, err
}

// testKilled kills the agent. kubelet restarts it, and it does not report the believed state again.
func testKilled(t *testing.T, c *cluster) {
	before := c.awaitCondition(t, "ReadonlyFilesystem", "False")
	pid := agentPID(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.await1(t, "the agent to be back", func(p pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	await(t, "another process", func() error {
		if again := agentPID(t); again == pid {
			return fmt.Errorf("still %d", pid)
		}
		return nil
	})
	after := c.awaitCondition(t, "ReadonlyFilesystem", "False")
	if !after.LastTransitionTime.Equal(before.LastTransitionTime) {
		t.Errorf("the restart moved lastTransitionTime from %s to %s", before.LastTransitionTime,
			after.LastTransitionTime)
	}
}

// testMemoryLimit gives the container less memory than the agent needs: the limit holds although the agent has left the
// container's namespaces.
func testMemoryLimit(t *testing.T, c *cluster) {
	c.install(t, false, "resources.requests.memory=8Mi", "resources.limits.memory=8Mi")
	p := c.await1(t, "the agent to be killed at its limit", func(p pod) bool {
		last := p.Status.ContainerStatuses[0].LastState.Terminated
		return last != nil && (last.Reason == "OOMKilled" || last.Reason == "StartError")
	})
	t.Logf("%+v", *p.Status.ContainerStatuses[0].LastState.Terminated)
	if reason := p.Status.ContainerStatuses[0].LastState.Terminated.Reason; reason != "OOMKilled" {
		t.Errorf("ended with %s", reason)
	}
}
