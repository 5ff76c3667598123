package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

const deadUID = "5d8d2d6a-0000-4000-8000-000000000000"

// leftPod is a pod that left behind one object of each of many kinds.
func leftPod() object.Report {
	id := strings.Repeat("0123456789abcdef", 4)
	pod := object.Pod{UID: deadUID, Namespace: "shop", Name: "web-0"}
	other := object.Pod{UID: "77777777-0000-4000-8000-000000000000", Namespace: "monitoring", Name: "exporter-x"}
	r := object.Report{At: finding.Timestamp{Boot: "b", SinceBoot: time.Hour}}
	add := func(kind object.Kind, id string, facts map[string]string) *object.Assessment {
		r.Objects = append(r.Objects, object.Assessment{
			Object:  object.Object{Kind: kind, ID: id, Pod: pod, Facts: facts},
			Verdict: object.Leftover, Passes: 9, FirstSeen: finding.Timestamp{Boot: "b", SinceBoot: 48 * time.Minute},
			Why: "no witness knows pod " + deadUID + "; seen in 9 passes over 12m0s",
			Witnesses: map[string]object.Answer{object.Apiserver: object.Denies, object.Kubelet: object.Denies,
				object.Runtime: object.Denies, object.Containerd: object.Denies},
		})
		return &r.Objects[len(r.Objects)-1]
	}
	add(object.Container, id, nil)
	netns := add(object.Netns, "/run/netns/cni-1", nil)
	netns.Verdict, netns.Why = object.Candidate, "runtime still knows its sandbox; removing the sandbox releases it"
	netns.Witnesses = map[string]object.Answer{object.Apiserver: object.Denies, object.Kubelet: object.Denies,
		object.Runtime: "knows: sandbox NOTREADY", object.Containerd: object.Denies}
	dir := "/var/lib/kubelet/pods/" + deadUID
	for i := range 8 {
		point := fmt.Sprintf("%s/volumes/kubernetes.io~secret/s%d", dir, i)
		m := add(object.Mount, fmt.Sprintf("%s#%d", point, 100+i), map[string]string{"point": point})
		if i == 1 {
			m.Holders = []object.Holder{{PID: 4242, Command: "exporter", How: "mount-namespace",
				Pod: object.Pod{UID: other.UID}}}
		}
	}
	for _, h := range []string{"cpu", "memory", "pids"} {
		c := add(object.Cgroup, "/sys/fs/cgroup/"+h+"/kubepods/pod"+deadUID, map[string]string{"hierarchy": h})
		c.Passes, c.Why = 8, "no witness knows pod "+deadUID+"; seen in 8 passes over 11m0s"
	}
	add(object.PodDirectory, dir, map[string]string{"volumeRecord": dir + "/volumes/x/vol_data.json"})
	r.Objects = append(r.Objects, object.Assessment{Verdict: object.Live,
		Object: object.Object{Kind: object.Container, ID: "c", Pod: other}})
	return r
}

func TestInspectPrintsATreeForAPod(t *testing.T) {
	var b strings.Builder
	if err := printReport(&b, leftPod(), release.Settings{}, false, false); err != nil {
		t.Fatal(err)
	}
	want := `pod shop/web-0 (5d8d2d6a): 13 leftover, 1 candidate, first seen 12m0s ago
  container           0123456789abc
  netns               /run/netns/cni-1
      CANDIDATE: runtime still knows its sandbox; removing the sandbox releases it
      but runtime knows: sandbox NOTREADY
  mount               /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s0#100
  mount               /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s1#101
      held by pid 4242 exporter (mount-namespace) of pod monitoring/exporter-x (77777777)
  mount               /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s2#102
  mount               /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s3#103
  mount               /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s4#104
  mount ×3            and more: --wide lists them
  cgroup ×3           /sys/fs/cgroup/*/kubepods/podUID
  pod-directory       /var/lib/kubelet/pods/UID
  why: no witness knows it; seen in 8 passes over 11m0s
  witnesses: apiserver does not know; containerd does not know; kubelet does not know; runtime does not know
  blocked: the mount /var/lib/kubelet/pods/UID/volumes/kubernetes.io~secret/s1 is also
           in the mount namespace of pid 4242 exporter of pod monitoring/exporter-x (77777777): that pod mounts a
           directory of the host without mountPropagation HostToContainer, and keeps the mount until it is restarted
  next: nodeagent clean shows what would be released, nodeagent clean --yes releases it

15 objects: 13 leftover 1 candidate 0 unknown 0 unowned 1 live 0 foreign
`
	if diff := cmp.Diff(want, strings.ReplaceAll(b.String(), deadUID, "UID")); diff != "" {
		t.Error(diff)
	}
}

// For a pod that is opted out the output says so and why it is kept, and names no release.
func TestInspectSaysWhatIsKept(t *testing.T) {
	const annotation = "its annotation says so"
	for name, test := range map[string]struct {
		namespaces []string
		optOut     string
		want       string
	}{
		"nothing":       {[]string{"db"}, "", ""},
		"its namespace": {[]string{"shop"}, "", "namespace shop is opted out"},
		"itself":        {nil, annotation, annotation},
	} {
		r := leftPod()
		r.Objects[2].OptOut = test.optOut
		r.Objects[len(r.Objects)-1].OptOut = annotation // of a living pod
		for _, wide := range []bool{false, true} {
			var b strings.Builder
			if err := printReport(&b, r, release.Settings{OptOut: test.namespaces}, true, wide); err != nil {
				t.Fatal(err)
			}
			kept := strings.Contains(b.String(), "  kept: none of it is released: "+test.want+"\n")
			if kept != (test.want != "") || strings.Count(b.String(), "kept: ") > 1 ||
				!wide && kept == strings.Contains(b.String(), "nodeagent clean --yes") {
				t.Errorf("%s, wide %v:\n%s", name, wide, b.String())
			}
		}
	}
}

// The output names all reasons why an object is not released, not only the first.
func TestExplainNamesEveryReason(t *testing.T) {
	i := inspection{report: leftPod(), settings: release.Defaults()}
	i.settings.OptOut = []string{"shop"}
	_, not := releaseOf(i, i.report.Objects[0])
	const want = "the mode for kind container is dry-run; namespace shop is opted out"
	if not != want {
		t.Errorf("%q, want %q", not, want)
	}
}

func TestInspectWideListsEverything(t *testing.T) {
	var b strings.Builder
	r := leftPod()
	if err := printReport(&b, r, release.Settings{}, false, true); err != nil {
		t.Fatal(err)
	}
	for _, o := range r.Objects[:len(r.Objects)-1] {
		if !strings.Contains(b.String(), fmt.Sprintf("%s %s %s\n      why: %s\n",
			strings.ToUpper(string(o.Verdict)), o.Kind, o.ID, o.Why)) {
			t.Errorf("no %s %s", o.Kind, o.ID)
		}
	}
}

// A name with control characters does not reach the terminal.
func TestInspectPrintsNoControlCharacters(t *testing.T) {
	r := leftPod()
	r.Objects[0].ID, r.Objects[0].Pod.Name = "\x1b]0;owned\x07", "\x1b[2J"
	for _, wide := range []bool{true, false} {
		var b strings.Builder
		if err := printReport(&b, r, release.Settings{}, false, wide); err != nil || strings.ContainsAny(b.String(), "\x1b\x07") {
			t.Errorf("%q, %v", b.String(), err)
		}
	}
}

func TestBlocker(t *testing.T) {
	other := object.Pod{UID: "7", Namespace: "monitoring", Name: "exporter"}
	of := func(kind object.Kind, pairs ...string) object.Assessment {
		o := object.Assessment{Verdict: object.Leftover, Object: object.Object{Kind: kind, ID: "/id",
			Pod: object.Pod{UID: "1"}, Facts: map[string]string{}}}
		for i := 0; i < len(pairs); i += 2 {
			o.Facts[pairs[i]] = pairs[i+1]
		}
		return o
	}
	held := func(how string, pod object.Pod) object.Assessment {
		o := of(object.Mount, "point", "/mnt")
		o.Holders = []object.Holder{{PID: 9, Command: "cat", How: how, Pod: pod}}
		return o
	}
	udev := held("mount-namespace", object.Pod{}) // a service with a mount namespace of its own
	udev.Holders = append(udev.Holders, object.Holder{PID: 10, Command: "sleep", How: "cwd"})
	record := of(object.PodDirectory, "volumeRecord", "/x/vol_data.json")
	live := record
	live.Verdict = object.Live
	for name, test := range map[string]struct {
		pod  []object.Assessment
		want string // empty: no cause is known
	}{
		"a record is left": {[]object.Assessment{record},
			"vol_data.json is left: a known upstream bug, kubernetes#105536"},
		"of a living pod": {[]object.Assessment{live}, ""},
		"another pod's mount namespace": {[]object.Assessment{held("mount-namespace", other)},
			"of pod monitoring/exporter (7): that pod mounts"},
		"the pod's own mount namespace": {[]object.Assessment{held("mount-namespace", object.Pod{UID: "1"})},
			"busy until that process ends"},
		"a shell of the host": {[]object.Assessment{held("cwd", object.Pod{})},
			"held by pid 9 cat (cwd) of the host"},
		"a shell, and a service of systemd": {[]object.Assessment{udev}, "held by pid 10 sleep (cwd) of the host"},
		"a frozen cgroup":                   {[]object.Assessment{of(object.Cgroup, "frozen", "true")}, "/id is frozen"},
		"frozen by cgroup v2": {[]object.Assessment{of(object.Cgroup, "frozen", "true", "hierarchy", "v2")},
			"no signal but SIGKILL"},
		"frozen by cgroup v2, and held": {[]object.Assessment{of(object.Cgroup, "frozen", "true", "hierarchy",
			"v2"), held("cwd", object.Pod{})}, "held by pid 9 cat"},
		"a cgroup that is not frozen": {[]object.Assessment{of(object.Cgroup, "frozen", "false")}, ""},
		"a process in the kernel": {[]object.Assessment{of(object.Process, "state", "D", "waitsIn",
			"rpc_wait")}, "in rpc_wait"},
		"a process in D, nobody knows why": {[]object.Assessment{of(object.Process, "state", "D")}, ""},
		"a mount that is another pod's": {[]object.Assessment{of(object.Mount, "refused", "below it is another")},
			"must not be unmounted"},
		"the first to be removed": {[]object.Assessment{record, held("cwd", other),
			of(object.Cgroup, "frozen", "true")}, "is frozen"},
		"nothing known": {[]object.Assessment{of(object.Netns)}, ""},
	} {
		if got := blocker(test.pod); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
