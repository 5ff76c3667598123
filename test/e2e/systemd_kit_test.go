package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

func openSystemdNode(t *testing.T) *lab.Lab {
	t.Helper()
	need.Flag(t, *join != "", "-join: on an emulated machine with systemd")
	return openLab(t)
}

// deadPod is a pod that the apiserver and kubelet do not know, with the leftovers of its deletion on the node. Its
// memory volume is still mounted: as long as it is, kubelet does not touch the pod's other objects.
type deadPod struct {
	t      *testing.T
	lab    *lab.Lab
	uid    string
	volume string
	wants  []object.Kind // kinds to be found

	pid       int    // of the process in its scope
	container string // the container created for it
	hostPort  int    // the node's port that leads to it; 0: none
}

func newDeadPod(t *testing.T, l *lab.Lab, wants ...object.Kind) *deadPod {
	t.Helper()
	id := randomID()
	uid := strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:32]}, "-")
	d := &deadPod{t: t, lab: l, uid: uid, wants: append(wants, object.Mount, object.PodDirectory),
		volume: filepath.Join(l.Paths.KubeletRoot, "pods", uid, "volumes/kubernetes.io~empty-dir/v")}
	if err := errors.Join(os.MkdirAll(d.volume, 0o750), unix.Mount("tmpfs", d.volume, "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	return d
}

// randomID has the form of a container's ID.
func randomID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (d *deadPod) slice() string {
	return "kubepods-besteffort-pod" + strings.ReplaceAll(d.uid, "-", "_") + ".slice"
}

func (d *deadPod) cgroup() string {
	return "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/" + d.slice()
}

// scope runs a process in a scope like runc's.
func (d *deadPod) scope() {
	d.t.Helper()
	id := randomID()
	cmd := exec.CommandContext(d.t.Context(), "systemd-run", "--quiet", "--scope",
		"--unit=cri-containerd-"+id+".scope", "--slice="+d.slice(), "sleep", "100000")
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	d.t.Cleanup(func() { _ = cmd.Process.Kill() })
	await(d.t, "the scope", func() error {
		pids, err := os.ReadFile(d.cgroup() + "/cri-containerd-" + id + ".scope/cgroup.procs")
		if err == nil && len(pids) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	d.pid = cmd.Process.Pid
}

func await(t *testing.T, what string, try func() error) {
	t.Helper()
	if err := harness.WaitFor(t.Context(), what, try); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// inspected is the output of "nodeagent inspect -o json".
type inspected struct {
	Objects []object.Assessment
	Gates   []object.Gate
	Errors  []struct{ What, Error string }
}

// of returns the pod's objects of a kind.
func (i inspected) of(d *deadPod, kind object.Kind) []object.Assessment {
	return slices.DeleteFunc(slices.Clone(i.Objects), func(o object.Assessment) bool {
		return o.Kind != kind || o.Pod.UID != d.uid
	})
}

// awaitLeftovers inspects until each of the pods' objects is found and proven.
func awaitLeftovers(t *testing.T, a *harness.Agent, pods ...*deadPod) (report inspected) {
	t.Helper()
	await(t, "proof", func() error {
		report = inspected{}
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		var missing []string
		for _, d := range pods {
			for _, kind := range d.wants {
				found := report.of(d, kind)
				if len(found) == 0 {
					missing = append(missing, fmt.Sprintf("no %s of %s", kind, d.uid))
				}
				for _, o := range found {
					if o.Verdict != object.Leftover {
						missing = append(missing, fmt.Sprintf("%s %s of %s is %s: %s", kind, o.ID, d.uid, o.Verdict, o.Why))
					}
				}
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%s; gates %+v; errors %v", strings.Join(missing, "\n"), report.Gates, report.Errors)
		}
		return nil
	})
	return report
}

// awaitReleased cleans until no object of the pods is found.
func awaitReleased(t *testing.T, a *harness.Agent, pods ...*deadPod) {
	t.Helper()
	var last harness.Answer
	err := harness.WaitFor(t.Context(), "the release", func() (err error) {
		if last, err = a.CLI(t.Context(), "clean", "--yes"); err != nil {
			return err
		}
		var report inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, d := range pods {
			for _, kind := range d.wants {
				for _, o := range report.of(d, kind) {
					err = errors.Join(err, fmt.Errorf("%s %s: %s %s", kind, o.ID, o.Verdict, o.Why))
				}
			}
			if _, missing := os.Stat(d.cgroup()); missing == nil {
				err = errors.Join(err, fmt.Errorf("%s is there", d.cgroup()))
			}
			if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-active",
				d.slice()).Output(); strings.TrimSpace(string(state)) == "active" {
				err = errors.Join(err, fmt.Errorf("systemd has %s", d.slice()))
			}
		}
		return err
	})
	t.Logf("the last clean: exit code %d\n%s%s", last.Code, last.Stdout, last.Stderr)
	if err != nil {
		t.Fatal(err)
	}
}

// foreignSlices are cgroups that look like those of pods, but do not belong to our kubelet.
type foreignSlices struct{ scopes map[string]int }

func newForeignSlices(t *testing.T) foreignSlices {
	t.Helper()
	f := foreignSlices{scopes: map[string]int{}}
	uid := strings.ReplaceAll("11111111-2222-3333-4444-555555555555", "-", "_")
	for _, slice := range []string{"kubepods-other.slice", "nested-kubepods-besteffort-pod" + uid + ".slice",
		"system.slice"} {
		unit := "cri-containerd-" + randomID() + ".scope"
		cmd := exec.CommandContext(t.Context(), "systemd-run", "--quiet", "--scope", "--unit="+unit, "--slice="+slice,
			"sleep", "100000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		await(t, unit, func() error {
			if state, _ := exec.CommandContext(t.Context(), "systemctl", "is-active", unit).Output(); string(state) !=
				"active\n" {
				return fmt.Errorf("it is %s", state)
			}
			return nil
		})
		f.scopes[unit] = cmd.Process.Pid
	}
	return f
}

func (f foreignSlices) check(t *testing.T) {
	t.Helper()
	for unit, pid := range f.scopes {
		cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(cgroup)), "/"+unit) {
			t.Errorf("process %d of the foreign %s was touched: %s, %v", pid, unit, cgroup, err)
		}
		if state := command(t, "systemctl", "is-active", unit); state != "active" {
			t.Errorf("the foreign %s is %s", unit, state)
		}
	}
}
