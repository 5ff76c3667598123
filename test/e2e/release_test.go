package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// openLab returns the lab of these tests, or skips if none is wanted. The previous test may have ended before the node
// was Ready again.
func openLab(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *withLab, "-lab: uses a real node")
	l, err := lab.Open("")
	if err == nil {
		var missing []string
		if missing, err = l.Resume(t.Context()); len(missing) > 0 {
			t.Logf("an earlier test left these components stopped, or the agent ended them: %v", missing)
		}
	}
	if err == nil {
		err = harness.WaitFor(t.Context(), "the node to be healthy", func() error {
			return l.Healthy(t.Context())
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ofTheProcess skips, in the DaemonSet, tests about a process of the host.
func ofTheProcess(t *testing.T, why string) {
	t.Helper()
	need.Flag(t, !*asDaemonSet, "not -daemonset: "+why)
}

// observesInTest skips, in the DaemonSet, tests that make the observations themselves: the result does not depend on the
// installation. With a containerd of the test's choice, tests of the runtime run: they observe a different one.
func observesInTest(t *testing.T) {
	t.Helper()
	ofTheRuntime := []string{"TestKubeletAndRuntimeHealth", "TestShimsOfLivingPods"}
	if *containerd == "" || !slices.Contains(ofTheRuntime, t.Name()) {
		ofTheProcess(t, "it observes from the test's own process, whatever is installed")
	}
}

// install installs the agent on the lab for one test.
func install(t *testing.T, l *lab.Lab, overrides harness.Overrides, tags ...string) *harness.Agent {
	t.Helper()
	name := strings.Join(append(tags, "agent"), "-")
	binary := filepath.Join(cmp.Or(*agents, builds), name, "nodeagent")
	if _, err := os.Stat(binary); err != nil { // by the first test that needs it
		if _, err := harness.Build(t.Context(), filepath.Dir(binary), tags...); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(l.Dir, "agent-")
	if err != nil {
		t.Fatal(err)
	}
	put := harness.Install
	if *asDaemonSet {
		put = harness.InstallDaemonSet
	}
	a, err := put(t.Context(), l, dir, binary, overrides)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log := ""
		if t.Failed() {
			log = a.LogTail() // a pod's log is gone with it
		}
		if err := a.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the agent's log ends with:\n%s", log)
		}
	})
	if *asDaemonSet { // after the installation it runs, and its program is on the host
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// TestCrashAfterEveryStep kills the real agent (-9) at the first point of a release, then a new one at its second
// point, and so on, until one completes: wherever it was interrupted, the end is the same, no unproven step was taken,
// and living objects are untouched.
func TestCrashAfterEveryStep(t *testing.T) {
	ofTheProcess(t, "what is killed is a command on the host, beside which no daemon releases")
	l := openLab(t)
	a := install(t, l, harness.Overrides{"remediate": map[string]any{"retryAfter": "1ms", "podsPerHour": 1000,
		"ownerGrace": "2s"}}, "faultpoints")
	living := newBystanders(t, l)
	victim, err := harness.NewVictim(t.Context(), l, "crash-victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitProof(t, a, victim)
	killed := 0
	for at := 1; ; at++ {
		if at > 200 {
			t.Fatal("the release never comes through")
		}
		answer := cleanUntil(t, a, at)
		if answer.Code != -1 { // not killed
			t.Logf("killed %d times; then: exit code %d\n%s%s", killed, answer.Code, answer.Stdout, answer.Stderr)
			break
		}
		killed++
	}
	if killed < 5 {
		t.Errorf("killed only %d times: this test proves little", killed)
	}
	awaitGone(t, a, victim)
	living.check(t)
}

// cleanUntil releases with a process killed at the given point.
func cleanUntil(t *testing.T, a *harness.Agent, at int) harness.Answer {
	t.Helper()
	points := filepath.Join(a.Dir, "faultpoints")
	if err := os.WriteFile(points, fmt.Appendf(nil, "at %d\nlog %s.log\n", at, points), 0o600); err != nil {
		t.Fatal(err)
	}
	answer, err := a.CLI(t.Context(), "clean", "--yes", "--faultpoints", points)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// awaitProof inspects by command until the pod's objects are leftovers: by then kubelet has had its chance to clean up.
func awaitProof(t *testing.T, a *harness.Agent, victim *harness.Victim) {
	t.Helper()
	began := time.Now()
	err := harness.WaitFor(t.Context(), "proof", func() error {
		var report harness.Inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, o := range report.Objects {
			if o.Pod.UID == victim.UID && o.Verdict == "leftover" {
				t.Logf("%s is proven to be a leftover after %s", o.Kind, time.Since(began).Round(time.Second))
				return nil
			}
		}
		return fmt.Errorf("%d objects, none is a leftover; gates %+v", len(report.Objects), report.Gates)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitGone waits until no object of the pod is on the node: the agent or, unblocked by it, kubelet has cleaned up.
func awaitGone(t *testing.T, a *harness.Agent, victim *harness.Victim) {
	t.Helper()
	var last harness.Answer
	err := harness.WaitFor(t.Context(), "everything of the pod to be gone", func() (err error) {
		if last, err = a.CLI(t.Context(), "clean", "--yes"); err != nil {
			return err
		}
		traces, err := victim.Traces(t.Context())
		if err == nil && len(traces) > 0 {
			err = fmt.Errorf("there are %q", traces)
		}
		return err
	})
	if err != nil {
		t.Errorf("%v; the last clean: exit code %d\n%s%s", err, last.Code, last.Stdout, last.Stderr)
	}
	if err := victim.CheckCanary(); err != nil {
		t.Errorf("user data was harmed: %v", err)
	}
}

// TestReleaseByTheDaemon: with mode on, the daemon finds and releases by itself; in dry-run, the default, it only
// reports.
func TestReleaseByTheDaemon(t *testing.T) {
	need.Flag(t, *long, "-long: test/daemonset (leftovers) has the same steps")
	l := openLab(t)
	a := install(t, l, nil)
	living := newBystanders(t, l)
	victim, err := harness.NewVictim(t.Context(), l, "daemon-victim")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := victim.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = harness.WaitFor(t.Context(), "the daemon's plan", func() error {
		status, err := a.Status(t.Context())
		if err == nil && len(status.Release.Last) == 0 {
			err = fmt.Errorf("no step is planned; findings %+v", status.Findings)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if traces, err := victim.Traces(t.Context()); err != nil || len(traces) == 0 {
		t.Errorf("dry-run released something: %v, %v", traces, err)
	}

	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := a.Configure(harness.Overrides{"remediate": map[string]any{"mode": "on"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = harness.WaitFor(t.Context(), "the daemon to release everything", func() error {
		traces, err := victim.Traces(t.Context())
		if err == nil && len(traces) > 0 {
			err = fmt.Errorf("there are %q", traces)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := victim.CheckCanary(); err != nil {
		t.Errorf("user data was harmed: %v", err)
	}
	living.check(t)
}

// TestKilledAgentComesBack: after its restart a killed agent reports the same, with the same IDs and times.
func TestKilledAgentComesBack(t *testing.T) {
	ofTheProcess(t, "test/daemonset (killed) has what kubelet does then")
	l := openLab(t)
	a := install(t, l, nil)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	disk := newDisk(t, a)
	if err := disk.Fail(); err != nil {
		t.Fatal(err)
	}
	before := awaitCondition(t, a, "True")
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	status, err := a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Findings) == 0 {
		t.Error("the restarted agent has forgotten the fault")
	}
	if after := awaitCondition(t, a, "True"); !after.LastTransitionTime.Equal(before.LastTransitionTime) {
		t.Errorf("lastTransitionTime moved from %s to %s by a restart", before.LastTransitionTime,
			after.LastTransitionTime)
	}
	if err := disk.Unmount(); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, a, "False")
}

// newDisk creates a disk, and removes it after the test.
func newDisk(t *testing.T, a *harness.Agent) *harness.Disk {
	t.Helper()
	disk, err := harness.NewDisk(t.Context(), a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Remove(context.WithoutCancel(t.Context())); err != nil { // the test's context has ended by now
			t.Error(err)
		}
	})
	return disk
}

func awaitCondition(t *testing.T, a *harness.Agent, status string) (c harness.Condition) {
	t.Helper()
	err := harness.WaitFor(t.Context(), "ReadonlyFilesystem to be "+status, func() (err error) {
		c, err = a.Condition(t.Context(), "ReadonlyFilesystem")
		if err == nil && c.Status != status {
			err = fmt.Errorf("it is %+v", c)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
