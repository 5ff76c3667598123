package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// furnish gives a pod one of each object that it can leave behind, except CRI's.
func furnish(n *node, uid, sandbox string) {
	n.Mount("test", n.PodDir(uid, "volumes/kubernetes.io~projected/token"), "tmpfs", 0)
	n.Mount("test", n.PodDir(uid, "volumes/kubernetes.io~projected/token"), "tmpfs", 0) // twice at one point
	n.PodDir(uid, "containers/app")
	dirs := n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/burstable/pod" + uid + "/" + sandbox)
	n.Process(dirs...)
	n.Attach(uid, sandbox)
}

// The life of a pod as an inspector observes it: it is live, it is deleted while kubelet is down, it becomes a leftover
// after three passes and ten minutes, and it is gone.
func TestLifeOfAPod(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.Add(dead, "job")
	furnish(n, living, sandbox)
	furnish(n, dead, deadSandbox)
	n.Sandbox(living, sandbox)
	i := n.inspector()

	report, history := i.Pass(t.Context(), nil)
	inspecttest.NoErrors(t, report)
	if n.Requests != 0 || len(history) != 0 {
		t.Errorf("nothing is suspicious: %d requests to the apiserver, history %v", n.Requests, history)
	}
	for kind, counts := range verdicts(report) {
		if counts[object.Live] == 0 || counts[object.Leftover]+counts[object.Candidate]+counts[object.Unknown] > 0 {
			t.Errorf("%s: %v", kind, counts)
		}
	}
	for _, kind := range kinds.Kinds() {
		if verdicts(report)[kind] == nil && kinds.Of(kind).ReportOnly == "" && !kinds.Of(kind).OptIn {
			t.Errorf("no %s is listed", kind)
		}
	}

	n.Remove(dead)
	for pass, step := range []struct {
		wait     time.Duration
		requests int // in total: a list and a Node object each time
		want     object.Verdict
	}{
		{time.Minute, 2, object.Candidate},
		{10 * time.Second, 2, object.Candidate}, // too near to the first list
		{time.Minute, 4, object.Candidate},
		{9 * time.Minute, 4, object.Leftover},
		{30 * time.Second, 4, object.Leftover},
		{time.Minute, 6, object.Leftover}, // ten minutes after the last list
	} {
		n.After(step.wait)
		report, history = i.Pass(t.Context(), history)
		inspecttest.NoErrors(t, report)
		if diff := cmp.Diff([]object.Verdict{step.want}, ofPod(report, dead)); diff != "" || n.Requests != step.requests {
			t.Errorf("pass %d: %d requests, verdicts %s\n%s", pass, n.Requests, diff, inspecttest.Whys(report, dead))
		}
		if diff := cmp.Diff([]object.Verdict{object.Live}, ofPod(report, living)); diff != "" {
			t.Errorf("pass %d, the living pod: %s\n%s", pass, diff, inspecttest.Whys(report, living))
		}
	}
	checkLeftovers(t, report)

	n.Add(dead, "job") // as if the list had been wrong
	n.After(time.Minute)
	report, history = i.Pass(t.Context(), history)
	if diff := cmp.Diff([]object.Verdict{object.Live}, ofPod(report, dead)); diff != "" || len(history) != 0 {
		t.Errorf("known again: %s, history %v", diff, history)
	}
}

// checkLeftovers checks the reported leftovers.
func checkLeftovers(t *testing.T, report object.Report) {
	t.Helper()
	counts := make(map[object.Kind]int)
	for _, o := range report.Objects {
		if o.Verdict != object.Leftover {
			continue
		}
		counts[o.Kind]++
		if len(o.Identity.Values()) == 0 || o.Passes < 3 || o.FirstSeen.IsZero() || len(o.Witnesses) != 4 {
			t.Errorf("%s %s: %+v", o.Kind, o.ID, o)
		}
		held := func(how string) bool {
			return slices.ContainsFunc(o.Holders, func(h object.Holder) bool {
				return h.How == how &&
					h.Command == "sleep"
			})
		}
		if o.Kind == object.Cgroup && o.Facts["processes"] == "1" && !held("cgroup") {
			t.Errorf("cgroup %s: holders %+v", o.ID, o.Holders)
		}
		if o.Kind == object.Cgroup && (o.Facts["hierarchy"] == "freezer" || o.Facts["hierarchy"] == "v2") &&
			o.Facts["frozen"] == "" && o.Facts["depth"] != "" {
			t.Errorf("cgroup %s: facts %v", o.ID, o.Facts)
		}
		if o.Kind.Networked() && (o.SandboxID != deadSandbox || o.Pod.Name != "p") {
			t.Errorf("%s %s: sandbox %s of %+v", o.Kind, o.ID, o.SandboxID, o.Pod)
		}
	}
	mounts := 2
	if counts[object.Mount] != mounts || counts[object.PodDirectory] != 1 || counts[object.Process] != 1 ||
		counts[object.CNIAttachment] != 1 ||
		counts[object.Netns] != 1 || counts[object.Link] != 1 || counts[object.Cgroup] < 2 {
		t.Errorf("leftovers: %v", counts)
	}
}

// The witnesses are asked after the objects were listed, and the apiserver last of all.
func TestOrderOfAsking(t *testing.T) {
	n := newNode(t)
	n.PodDir(dead)
	n.inspector().Pass(t.Context(), nil)
	want := []string{"runtime", "containerd", "kubelet", "apiserver"}
	n.Order = slices.Compact(n.Order)
	if diff := cmp.Diff(want, n.Order[len(n.Order)-4:]); diff != "" || slices.Contains(n.Order[:len(n.Order)-2],
		"kubelet") {
		t.Errorf("%v", n.Order)
	}
}

// A pod that appears after the objects were listed, and a starting one: the races of §0.4.
func TestStartingPodIsLive(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	furnish(n, dead, newSandbox) // all objects exist, and CRI does not list the sandbox yet
	n.Leases = append(n.Leases, leases.Lease{ID: newSandbox})
	zero := func(s *object.Settings) { *s = object.Settings{HostNamespaces: true, MassOrphaning: 100, Passes: 2} }

	report, _ := n.inspector(zero).Pass(t.Context(), nil)
	for _, o := range report.Objects {
		if o.Kind.Networked() && o.Pod.UID == dead && o.Verdict != object.Candidate {
			t.Errorf("a lease alone must keep the network: %s %s: %s", o.Kind, o.Verdict, o.Why)
		}
	}
	n.Add(dead, "starting")
	report, _ = n.inspector(zero).Pass(t.Context(), nil)
	if diff := cmp.Diff([]object.Verdict{object.Live}, ofPod(report, dead)); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead))
	}
}

// Objects that resemble leftovers and are not ours.
func TestForeignObjects(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	netns := n.Host.Paths.NetnsDirs[0]
	hosttest.PinNetns(t, filepath.Join(netns, "foo")) // ip netns add foo
	hosttest.Veth(t, "user0", "user1", "")
	hosttest.Veth(t, "router0", "eth0", filepath.Join(netns, "foo"))
	n.Process(n.Cgroups(n.Host.Paths.CgroupRoot + "/docker/" + sandbox + "/kubepods/burstable/pod" + dead)...)
	n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/podman")
	n.PodDir("lost+found")
	write(t, filepath.Join(n.Host.Paths.KubeletRoot, "pods", "notes"), "")
	// Podman's and another kubelet's attachments in the shared cache.
	results := n.Mkdir(n.Host.Paths.CNICacheDir, "results")
	write(t, filepath.Join(results, "podman"), `{"kind":"cniCacheV1","containerId":"`+deadSandbox+
		`","ifName":"eth0","networkName":"podman","netns":"`+netns+`/cni-`+dead+`"}`)
	write(t, filepath.Join(results, "second"), `{"kind":"cniCacheV1","containerId":"`+newSandbox+
		`","ifName":"eth0","networkName":"x","netns":"/run/second/netns/cni-`+other+`","cniArgs":[["K8S_POD_UID","`+
		other+`"]]}`)
	n.Sandbox(living, sandbox)

	report, history := n.inspector(func(s *object.Settings) {
		*s = object.Settings{HostNamespaces: true, MassOrphaning: 100}
	}).Pass(t.Context(), nil)
	inspecttest.NoErrors(t, report)
	if n.Requests != 0 || len(history) != 0 {
		t.Errorf("%d requests, history %v", n.Requests, history)
	}
	foreign := make(map[object.Kind]int)
	for _, o := range report.Objects {
		if o.Verdict != object.Live && o.Verdict != object.Foreign {
			t.Errorf("%s %s: %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
		if o.Verdict == object.Foreign {
			foreign[o.Kind]++
		}
		if o.Kind == object.Cgroup && o.Pod.UID != living {
			t.Errorf("listed cgroup %s", o.ID)
		}
	}
	if foreign[object.Process] == 0 { // there may be more: of a lab on this machine
		t.Error("the nested process is not reported")
	}
	delete(foreign, object.Process)
	want := map[object.Kind]int{object.Netns: 1, object.Link: 3, object.PodDirectory: 2, object.CNIAttachment: 2}
	if diff := cmp.Diff(want, foreign); diff != "" {
		t.Error(diff)
	}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An attachment in a shared cache may belong to another kubelet on this machine: if another process is in its
// namespace, it is.
func TestInhabitedNamespaceIsForeign(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	netns := n.Attach(dead, deadSandbox)
	inhabitant := n.ProcessIn(netns)
	report, _ := n.inspector(func(s *object.Settings) {
		*s = object.Settings{HostNamespaces: true, MassOrphaning: 100}
	}).Pass(t.Context(), nil)
	inspecttest.NoErrors(t, report)
	if diff := cmp.Diff([]object.Verdict{object.Foreign}, ofPod(report, dead)); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead))
	}
	for _, o := range report.Objects {
		if o.Pod.UID == dead && (len(o.Holders) != 1 || o.Holders[0].PID != inhabitant) {
			t.Errorf("%s: holders %+v", o.Kind, o.Holders)
		}
	}
}

// Each way in which a list can be wrong, with and without an error.
func TestWitnessFaults(t *testing.T) {
	foreignPod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: other, Namespace: "a", Name: "b"},
		Spec: corev1.PodSpec{NodeName: "node-b"}}
	for name, fault := range map[string]func(*node){
		"empty list":                   func(n *node) { n.Cluster = nil },
		"list of another node":         func(n *node) { n.Cluster = []corev1.Pod{foreignPod} },
		"list with a foreign pod":      func(n *node) { n.Cluster = append(n.Cluster, foreignPod) },
		"old list":                     func(n *node) { n.Kubelet = append(n.Kubelet, manyPods(20)...) },
		"401":                          func(n *node) { n.ClusterErr = errors.New("401 Unauthorized") },
		"another machine":              func(n *node) { n.NodeObject.Status.NodeInfo.MachineID = "x" },
		"another boot":                 func(n *node) { n.NodeObject.Status.NodeInfo.BootID = "x" },
		"kubelet away":                 func(n *node) { n.KubeletErr = errors.New("connection refused") },
		"kubelet has no pods":          func(n *node) { n.Kubelet = nil },
		"runtime away":                 func(n *node) { n.RuntimeErr = errors.New("connection refused") },
		"no kubelet configured":        func(n *node) { n.Host.Kubelet = host.Kubelet{} },
		"no cluster configured":        func(n *node) { n.Host.Cluster = host.Cluster{} },
		"kubelet's metric away":        func(n *node) { n.Host.Kubelet.Metric = nil },
		"not in the host's namespaces": func(*node) {}, // the setting below
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.PodDir(dead)
			if name == "kubelet has no pods" {
				n.PodDir(living) // kubelet has just started: the apiserver has more pods
			}
			fault(n)
			i := n.inspector(func(s *object.Settings) {
				*s = object.Settings{HostNamespaces: name != "not in the host's namespaces", MassOrphaning: 3}
			})
			var history object.History
			for range 5 {
				var report object.Report
				report, history = i.Pass(t.Context(), history)
				for _, o := range report.Objects {
					if o.Verdict == object.Leftover || o.Pod.UID == dead && o.Verdict != object.Unknown {
						t.Errorf("%s %s: %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
					}
				}
				n.After(time.Hour)
			}
		})
	}
}

func manyPods(countPods int) []corev1.Pod {
	pods := make([]corev1.Pod, countPods)
	for i := range pods {
		pods[i].UID = types.UID(fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i))
	}
	return pods
}

// A volume with a lost server, and a pod's directory with such a mount on it.
func TestHungVolumeAffectsOnlyItself(t *testing.T) {
	n := newNode(t)
	hung := hosttest.HangingFUSE(t)
	n.Mount(hung, n.PodDir(dead, "volumes/kubernetes.io~nfs/data"), "", unix.MS_BIND)
	n.Mount(hung, n.PodDir(other), "", unix.MS_BIND)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, _ := n.inspector(func(s *object.Settings) {
		*s = object.Settings{HostNamespaces: true, MassOrphaning: 100}
	}).Pass(ctx, nil)
	inspecttest.NoErrors(t, report)
	got := verdicts(report)
	if got[object.Mount][object.Leftover] != 2 || got[object.PodDirectory][object.Leftover] != 2 {
		t.Errorf("got %v", got)
	}
	for _, o := range report.Objects {
		if o.Kind == object.Mount && (o.Facts["class"] != "fuse" || o.Facts["type"] != "fuse.hang") {
			t.Errorf("%s: %v", o.ID, o.Facts)
		}
	}
}

// A kind that was not asked for, or whose lister failed, keeps its history.
func TestHistoryOfUnlistedObjects(t *testing.T) {
	n := newNode(t)
	n.PodDir(dead)
	i := n.inspector()
	_, history := i.Pass(t.Context(), nil)
	n.After(time.Minute)
	_, history = i.Pass(t.Context(), history, object.Process)
	if len(history) != 1 {
		t.Errorf("not asked for: %v", history)
	}
	root := n.Host.Paths.KubeletRoot
	n.Host.Paths.KubeletRoot = "/proc/self/cmdline" // no directory
	n.After(time.Minute)
	report, history := i.Pass(t.Context(), history)
	if len(history) != 1 || !slices.ContainsFunc(report.Errors, func(f object.Failure) bool {
		return f.What == string(object.PodDirectory)
	}) {
		t.Errorf("lister failed: %v, %v", history, report.Errors)
	}
	n.Host.Paths.KubeletRoot = root
	if err := os.Remove(filepath.Join(root, "pods", dead)); err != nil {
		t.Fatal(err)
	}
	if _, history = i.Pass(t.Context(), history); len(history) != 0 {
		t.Errorf("gone: %v", history)
	}
}
