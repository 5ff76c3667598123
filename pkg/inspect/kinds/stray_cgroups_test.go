package kinds_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// A cgroup outside our kubelet's tree is our leftover if one of our sources has named its UID; it is never released.
// Those of another Kubernetes are foreign, and an empty one at the root without a named pod is unowned.
func TestStrayCgroups(t *testing.T) {
	mounts, err := mount.Table(newNode(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	done := map[bool]bool{} // one of each version: making cgroups takes long
	for _, h := range cgroup.CgroupHierarchies(mounts, "/sys/fs/cgroup") {
		if done[h.V2] || !h.V2 && !h.Has("pids") && !h.Has("freezer") {
			continue
		}
		done[h.V2] = true
		for _, configured := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, v2 %v, configured %v", h.Name, h.V2, configured), func(t *testing.T) {
				testStrayCgroups(t, h.Point, configured)
			})
		}
	}
}

func testStrayCgroups(t *testing.T, hierarchy string, configured bool) {
	n := newNode(t)
	n.Host.Paths.CgroupMount = hierarchy
	n.Host.Paths.CgroupDriver = ""
	if configured {
		n.Host.Paths.CgroupDriver = host.CgroupfsDriver
	} else {
		n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + living)
	}
	root := strings.ReplaceAll(n.Host.Paths.CgroupRoot[1:], "-", "_")
	underscored := func(uid string) string { return strings.ReplaceAll(uid, "-", "_") }
	names := map[string]string{} // a test's names of cgroups, by path
	add := func(name, path string) []string {
		dirs := n.Cgroups(path)
		for _, dir := range dirs {
			names[dir] = name
		}
		return dirs
	}
	other := func(name, uid string) []string {
		return add(name, fmt.Sprintf("%s.slice/%[1]s-kubepods.slice/%[1]s-kubepods-pod%s.slice", root, underscored(uid)))
	}
	atRoot := func(name, uid, id string) []string {
		return add(name, fmt.Sprintf("%s-kubepods-burstable-pod%s.slice:cri-containerd:%s", root, underscored(uid), id))
	}
	uids := make([]string, 6)
	for i := range uids {
		uids[i] = mutatetest.UID(t)
	}
	ids := make([]string, 8)
	for i := range ids {
		ids[i] = mutatetest.Hex(t, 64)
	}
	n.Mkdir(n.PodDir(uids[0]))
	other("tree, its directory is here", uids[0])
	if configured { // else the driver is unknown while kubelet has pods in both trees, and so are all cgroups
		n.Add(uids[1], "moved")
		other("tree, kubelet had it", uids[1])
	}
	other("tree, of another kubelet", uids[2])
	n.Process(other("tree, of another kubelet, running", uids[3])...)
	atRoot("root, its directory is here", uids[0], ids[0])
	atRoot("root, nobody's", uids[4], ids[1])
	n.Process(atRoot("root, of another kubelet, running", uids[5], ids[2])...)
	add("root, of another cgroup root", fmt.Sprintf("other-%s-kubepods-pod%s.slice:cri-containerd:%s", root, underscored(uids[4]), ids[3]))
	add("k8s.io, nobody's", "k8s.io/"+ids[4])
	n.Process(add("k8s.io, running", "k8s.io/"+ids[5])...)
	add("system.slice, of a living pod", "system.slice:cri-containerd:"+ids[6])
	add("system.slice, by another runtime", "system.slice:docker-x:"+ids[7][:12])
	n.Containers = append(n.Containers, &cri.Container{Id: ids[6], Labels: map[string]string{witness.UIDLabel: living}})
	check := func(when string, report object.Report, want map[string]object.Verdict) {
		t.Helper()
		got := map[string]object.Verdict{}
		for _, o := range report.Objects {
			if name := names[o.ID]; name != "" {
				if o.Kind != object.StrayCgroup {
					t.Errorf("%s: %s is a %s", when, name, o.Kind)
				}
				got[name] = o.Verdict
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got): %s", when, diff)
		}
		for _, o := range kinds.Releasable(report).Objects {
			if names[o.ID] != "" {
				t.Errorf("%s: %s would be released", when, names[o.ID])
			}
		}
	}
	want := map[string]object.Verdict{
		"tree, its directory is here": object.Candidate,
		"tree, of another kubelet":    object.Foreign, "tree, of another kubelet, running": object.Foreign,
		"root, its directory is here": object.Candidate,
		"root, nobody's":              object.Live, "root, of another kubelet, running": object.Foreign,
		"k8s.io, nobody's": object.Live, "k8s.io, running": object.Foreign, "system.slice, of a living pod": object.Live,
	}
	if configured {
		want["tree, kubelet had it"] = object.Live
	}
	report, history := passes(t, n, n.inspector(), nil, 1, time.Minute)
	check("first", report, want)
	n.Remove(uids[1])
	report, history = passes(t, n, n.inspector(), history, 4, 5*time.Minute) // started again
	want["tree, its directory is here"], want["root, its directory is here"] = object.Leftover, object.Leftover
	if configured {
		want["tree, kubelet had it"] = object.Leftover
	}
	want["root, nobody's"], want["k8s.io, nobody's"] = object.Unowned, object.Unowned
	check("proven", report, want)
	if err := os.Remove(n.PodDir(uids[0])); err != nil {
		t.Fatal(err)
	}
	report, _ = passes(t, n, n.inspector(), history, 1, 5*time.Minute)
	check("its directory is gone meanwhile", report, want)
}
