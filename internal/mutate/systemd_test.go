package mutate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

// recorder is a fake systemd. It has every unit asked for, with the cgroup chosen by the test.
type recorder struct {
	group   func(unit string) string
	err     error
	result  string
	asked   []string
	stopped []string
}

func (r *recorder) ControlGroup(_ context.Context, unit string) (string, error) {
	r.asked = append(r.asked, unit)
	return r.group(unit), r.err
}

func (r *recorder) Stop(_ context.Context, unit string) (string, error) {
	r.stopped = append(r.stopped, unit)
	return r.result, nil
}

func (r *recorder) Close() {}

// sliceNode is a node with the systemd driver and the slice of a pod.
type sliceNode struct {
	*mutatetest.Node
	*recorder
	uid, slice, pod string // the pod's slice, and its path in a hierarchy
	hierarchies     []cgroup.CgroupHierarchy
}

// newSlices makes the slice of a pod, with cgroups below it, in all hierarchies of the machine. Unless a test changes
// it, its systemd confirms for every unit the cgroup that the agent asks about.
func newSlices(t *testing.T, below ...string) *sliceNode {
	t.Helper()
	n := &sliceNode{Node: mutatetest.New(t, func(p *host.Paths) {
		p.CgroupDriver = host.SystemdDriver
	}), uid: mutatetest.UID(t)}
	id := strings.ReplaceAll(strings.Trim(n.Host.Paths.CgroupRoot, "/"), "-", "_")
	class := id + "-kubepods-burstable"
	n.slice = class + "-pod" + strings.ReplaceAll(n.uid, "-", "_") + ".slice"
	top := "/" + id + ".slice"
	n.pod = top + "/" + id + "-kubepods.slice/" + class + ".slice/" + n.slice
	mounts, err := mount.Table(n.Host)
	if err != nil {
		t.Fatal(err)
	}
	n.hierarchies = cgroup.CgroupHierarchies(mounts, "/sys/fs/cgroup")
	systemds := func(h cgroup.CgroupHierarchy) bool { return h.V2 || h.Name == "name=systemd" }
	need.Has(t, slices.ContainsFunc(n.hierarchies, systemds), "a hierarchy that systemd would use")
	for _, h := range n.hierarchies {
		t.Cleanup(func() { removeAll(filepath.Join(h.Point, top)) })
		for _, name := range append(below, "") {
			n.Mkdir(filepath.Join(h.Point, n.pod, name))
		}
	}
	n.recorder = &recorder{result: "done", group: func(unit string) string {
		if unit == n.slice {
			return n.pod
		}
		return n.pod + "/" + unit
	}}
	mutate.WithUnits(n.Mutator, n.recorder)
	return n
}

func removeAll(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeAll(filepath.Join(dir, entry.Name()))
		}
	}
	_ = os.Remove(dir)
}

// remove removes a cgroup below the pod's in all hierarchies, as a release does.
func (n *sliceNode) remove(t *testing.T, name string) {
	t.Helper()
	for _, h := range n.hierarchies {
		dir := filepath.Join(h.Point, n.pod, name)
		if err := n.Mutator.RemoveCgroup(t.Context(), podCgroup(t, n.uid, dir)); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there", dir)
		}
	}
}

var scopeID = strings.Repeat("0123456789abcdef", 4)

// systemd is asked to stop the units of kubelet and the runtime, once and not once for each controller.
func TestStopUnitOfPodAndScope(t *testing.T) {
	for _, name := range []string{"", "cri-containerd-" + scopeID + ".scope", "crio-" + scopeID + ".scope",
		"crio-conmon-" + scopeID + ".scope"} {
		t.Run("pod/"+name, func(t *testing.T) {
			n := newSlices(t, name)
			want := []string{name}
			if name == "" {
				want = []string{n.slice}
			}
			n.remove(t, name)
			if diff := cmp.Diff(want, n.stopped); diff != "" {
				t.Errorf("stopped: %s", diff)
			}
			if diff := cmp.Diff(want, n.asked); diff != "" {
				t.Errorf("asked: %s", diff)
			}
		})
	}
}

// A container may choose any names below its own cgroup. The agent never asks systemd about these or stops them, and
// removes all of them; here systemd would have a unit of each name, with that very cgroup.
func TestStopUnitNeverByAContainersName(t *testing.T) {
	scope := "cri-containerd-" + scopeID + ".scope"
	other := strings.Repeat("f", 64)
	for _, name := range []string{
		scope + "/system.slice", scope + "/user.slice", scope + "/kubepods.slice", scope + "/init.scope", scope +
			"/-.slice",
		scope + "/kubelet.service", scope + "/cri-containerd-" + other + ".scope", scope + "/" + scope,
		scope + "/kubepods.slice/kubepods-pod0f6d4d9c_3f4e_4c3b_9a53_1d2c3b4a5e6f.slice",
		"system.slice", "user.slice", "kubepods.slice", "init.scope", "-.slice", "x/" + scope,
		`cri\x2dcontainerd-` + scopeID + ".scope", `cri-containerd-\x30` + scopeID[1:] + ".scope",
		"docker-" + scopeID + ".scope", "x-cri-containerd-" + scopeID + ".scope", "cri-containerd-x-" + scopeID +
			".scope",
		"cri-containerd-" + scopeID + ".slice", "cri-containerd-" + strings.ToUpper(scopeID) + ".scope",
		"cri-containerd-" + scopeID[1:] + ".scope", "cri-containerd-" + scopeID + ".scope (deleted)", scopeID,
		"cri-containerd-" + scopeID + ".scope.scope", "crio-ⅰ" + scopeID[1:] + ".scope", "ünï.slice", "\xff\xfe.slice",
		"cri-containerd-.scope",
		strings.Repeat("s", 249) + ".slice", strings.Repeat("s", 200) + ".scope/" + strings.Repeat("t", 249) + ".slice",
	} {
		t.Run(name, func(t *testing.T) {
			n := newSlices(t, name)
			n.group = func(unit string) string { return n.pod + "/" + name }
			n.remove(t, name)
			if len(n.asked)+len(n.stopped) != 0 {
				t.Errorf("asked for %q, stopped %q", n.asked, n.stopped)
			}
		})
	}
}

// A pod in which systemd ran is removed completely: the agent asks systemd only to stop the pod's slice.
func TestStopUnitOfPodWithSystemd(t *testing.T) {
	scope := "cri-containerd-" + scopeID + ".scope"
	n := newSlices(t, scope+"/system.slice/kubelet.service", scope+"/user.slice", scope+"/kubepods.slice", scope+
		"/init.scope")
	n.remove(t, "")
	if diff := cmp.Diff([]string{n.slice}, n.stopped); diff != "" {
		t.Errorf("stopped: %s", diff)
	}
}

// If systemd reports another cgroup for the unit, or no such unit, no unit is stopped.
func TestStopUnitOnlyWithItsOwnCgroup(t *testing.T) {
	scope := "cri-containerd-" + scopeID + ".scope"
	for name, group := range map[string]string{"elsewhere": "/system.slice/" + scope, "none": "", "above": "POD",
		"below": "POD/" + scope + "/x"} {
		t.Run(name, func(t *testing.T) {
			n := newSlices(t, scope)
			n.group = func(string) string { return strings.Replace(group, "POD", n.pod, 1) }
			n.remove(t, scope)
			if len(n.stopped) != 0 {
				t.Errorf("stopped %q", n.stopped)
			}
		})
	}
}

// If systemd cannot report the cgroup of a unit, no unit is stopped and no cgroup removed.
func TestStopUnitWhenSystemdCannotTell(t *testing.T) {
	n := newSlices(t)
	n.err = errors.New("connection reset")
	for _, h := range n.hierarchies {
		if h.Name != "name=systemd" {
			continue
		}
		dir := filepath.Join(h.Point, n.pod)
		if err := n.Mutator.RemoveCgroup(t.Context(), podCgroup(t, n.uid, dir)); !errors.Is(err, n.err) {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := os.Lstat(dir); err != nil {
			t.Error(err)
		}
	}
	if len(n.stopped) != 0 {
		t.Errorf("stopped %q", n.stopped)
	}
}

// A process in any hierarchy keeps the unit: systemd would kill the process.
func TestStopUnitWithProcess(t *testing.T) {
	scope := "cri-containerd-" + scopeID + ".scope"
	n := newSlices(t, scope+"/nested")
	for _, with := range n.hierarchies {
		if with.Name == "cpuset" {
			continue // accepts no process before its CPUs are set
		}
		t.Run("in "+with.Name, func(t *testing.T) {
			n.stopped = nil
			dir := filepath.Join(with.Point, n.pod, scope, "nested")
			p := n.Shell(n.uid, []string{dir}, "echo ready; while :; do sleep 0.1; done")
			for _, h := range n.hierarchies {
				if h.Name != "name=systemd" {
					continue
				}
				err := n.Mutator.RemoveCgroup(t.Context(), podCgroup(t, n.uid, filepath.Join(h.Point, n.pod, scope)))
				if !errors.Is(err, mutate.ErrBusy) {
					t.Errorf("removed: %v", err)
				}
			}
			if len(n.stopped) != 0 {
				t.Errorf("stopped %q", n.stopped)
			}
			if ended(t, n.Node, p, 0) {
				t.Error("the process ended")
			}
		})
	}
}

func TestHierarchyOfSystemd(t *testing.T) {
	memory := mount.Mount{Point: "/sys/fs/cgroup/memory", FSType: "cgroup", SuperOptions: []string{"rw", "memory"}}
	own := mount.Mount{Point: "/sys/fs/cgroup/systemd", FSType: "cgroup", SuperOptions: []string{"rw", "xattr",
		"name=systemd"}}
	unified := mount.Mount{Point: "/sys/fs/cgroup/unified", FSType: "cgroup2", SuperOptions: []string{"rw"}}
	for name, test := range map[string]struct {
		mount  mount.Mount
		mounts []mount.Mount
		want   bool
	}{
		"v1":              {own, []mount.Mount{memory, own}, true},
		"a controller":    {memory, []mount.Mount{memory, own}, false},
		"hybrid":          {own, []mount.Mount{own, unified}, true},
		"v2 of a hybrid":  {unified, []mount.Mount{own, unified}, false},
		"v2":              {unified, []mount.Mount{unified}, true},
		"v2 without name": {unified, []mount.Mount{memory, unified}, true},
	} {
		if got := mutate.OfSystemd(test.mount, test.mounts); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
