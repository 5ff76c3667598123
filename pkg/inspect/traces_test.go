package inspect

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const mountTable = "/proc/1/mountinfo"

const restingMounts = `21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
`

// restingNode is a healthy node, with an inspector that has made a pass over it.
func restingNode(t *testing.T) *fullNode {
	t.Helper()
	n := newFullNode(t)
	n.write(mountTable, restingMounts)
	kubelet, err := n.host.Kubelet.Process()
	if err != nil {
		t.Fatal(err)
	}
	n.sharesMounts("self", strconv.Itoa(kubelet.PID), otherPID)
	for _, dir := range []string{
		n.host.Paths.KubeletRoot + "/pods/" + inspecttest.UIDOf(1), "/sys/class/net/eth0",
		"/sys/fs/cgroup/memory/kubepods/besteffort/pod" + inspecttest.UIDOf(1), n.host.Paths.NetnsDirs[0],
		n.host.Paths.CNICacheDir + "/results",
	} {
		if err := os.MkdirAll(n.host.Files.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if n.inspector.Rests(t.Context()) {
		t.Fatal("rests before the first pass")
	}
	if report := n.wholePass(); !quiet(report, n.history, nil) {
		t.Fatalf("the node is not quiet: %+v, history %v", report, n.history)
	}
	return n
}

const otherPID = "4711"

// sharesMounts puts processes into one mount namespace.
func (n *fullNode) sharesMounts(pids ...string) {
	n.t.Helper()
	for _, pid := range pids {
		dir := n.host.Files.Path("/proc/" + pid + "/ns")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink("mnt:[4026531841]", dir+"/mnt")); err != nil {
			n.t.Fatal(err)
		}
	}
}

// wholePass makes a pass over all kinds.
func (n *fullNode) wholePass() object.Report {
	n.t.Helper()
	report, history := n.inspector.Pass(n.t.Context(), n.history)
	n.history = history
	return report
}

func TestRests(t *testing.T) {
	n := restingNode(t)
	for i := range restingPasses {
		if !n.inspector.Rests(t.Context()) {
			t.Fatalf("no rest before pass %d, although nothing has changed", i+2)
		}
	}
	if n.inspector.Rests(t.Context()) {
		t.Errorf("rests for more than %d passes", restingPasses)
	}
	n.wholePass()
	if !n.inspector.Rests(t.Context()) {
		t.Error("no rest after the next pass")
	}
}

// While a watch shows no change of pods, the agent rests for longer, but not forever; a change ends that.
func TestRestsWhileNoPodChanges(t *testing.T) {
	n := restingNode(t)
	still := true
	n.host.Cluster.Still = func(ago time.Duration) bool { return still && ago >= 0 }
	for i := range stillPasses {
		if !n.inspector.Rests(t.Context()) {
			t.Fatalf("no rest before pass %d, although nothing has changed", i+2)
		}
	}
	if n.inspector.Rests(t.Context()) {
		t.Errorf("rests for more than %d passes", stillPasses)
	}
	n.wholePass()
	still = false // a pod is deleted, and kubelet leaves no trace
	for range restingPasses {
		n.inspector.Rests(t.Context())
	}
	if n.inspector.Rests(t.Context()) {
		t.Error("rests although a pod has changed")
	}
}

// The watch begins shortly before the first pass, so it does not show whether pods changed just before. Kubelet's own list
// shows that later: no second pass is needed if it has the same pods.
func TestOnePassAtTheStart(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fullNode)
		rests  bool
	}{
		"the same pods":          {func(*fullNode) {}, true},
		"kubelet forgets a pod":  {func(n *fullNode) { delete(n.kubelet, inspecttest.UIDOf(3)) }, false},
		"a pod of kubelet ended": {func(n *fullNode) { n.kubelet[inspecttest.UIDOf(3)] = ended(n.kubelet[inspecttest.UIDOf(3)]) }, false},
		"kubelet is silent":      {func(n *fullNode) { n.host.Kubelet.Pods = nil }, false},
		"the watch is lost":      {func(n *fullNode) { n.host.Cluster.Still = func(time.Duration) bool { return false } }, false},
		"there is no watch":      {func(n *fullNode) { n.host.Cluster.Still = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := restingNode(t)
			watched := n.now
			n.host.Cluster.Still = func(ago time.Duration) bool { return n.now.Since(watched)-ago >= 30*time.Second }
			for range restingPasses {
				n.after(time.Minute)
				if !n.inspector.Rests(t.Context()) {
					t.Fatal("no rest, although nothing has changed")
				}
			}
			test.change(n)
			for run := restingPasses; run < stillPasses; run++ {
				n.after(time.Minute)
				if got := n.inspector.Rests(t.Context()); got != test.rests {
					t.Fatalf("rests in run %d: %t", run+1, got)
				} else if !got {
					return
				}
			}
			if n.after(time.Minute); n.inspector.Rests(t.Context()) {
				t.Error("rests forever")
			}
		})
	}
}

// Kubelet's silence is not the same as no pods.
func TestSilenceIsNoEmptyList(t *testing.T) {
	n := restingNode(t)
	n.host.Cluster.Still = func(ago time.Duration) bool { return ago == 0 }
	n.inspector.rest.pods = map[string]string{}
	n.host.Kubelet.Pods = nil
	for range restingPasses {
		n.after(time.Minute)
		n.inspector.Rests(t.Context())
	}
	if n.after(time.Minute); n.inspector.Rests(t.Context()) {
		t.Error("rests although kubelet lists nothing")
	}
}

// A gate closed for an hour is a finding, which must end soon after the gate has opened.
func TestReportedGateShortensTheRest(t *testing.T) {
	now := finding.Timestamp{SinceBoot: 3 * time.Hour}
	for _, test := range []struct {
		gate  object.Gate
		waits bool
	}{
		{object.Gate{Name: object.KubeletUptime, Since: finding.Timestamp{SinceBoot: 110 * time.Minute}}, true},
		{object.Gate{Name: object.KubeletUptime, Since: finding.Timestamp{SinceBoot: 170 * time.Minute}}, false},
		{object.Gate{Name: object.KubeletUptime, Open: true}, false},
		{object.Gate{Name: "host-namespaces", Since: now}, true},
	} {
		r := rest{known: true}
		if r.after(object.Report{At: now, Gates: []object.Gate{test.gate}}, nil, nil, nil); r.waits != test.waits {
			t.Errorf("%+v: %t", test.gate, r.waits)
		}
	}
}

func ended(pod corev1.Pod) corev1.Pod {
	pod.Status.Phase = corev1.PodSucceeded
	return pod
}

// A young kubelet closes its gate for ten minutes. No object waits for it, so the agent rests; the gate's own entry in the
// history is no reason for a pass.
func TestRestsBesideAYoungKubelet(t *testing.T) {
	n := restingNode(t)
	n.host.Cluster.Still = func(time.Duration) bool { return true }
	n.inspector.settings.KubeletUptime = 1000 * time.Hour
	n.inspector.rest.quiet = false // the next whole pass is due
	n.inspector.Rests(t.Context())
	if report := n.wholePass(); gateOf(report, object.KubeletUptime).Open || gateOf(report, object.KubeletUptime).Since.IsZero() {
		t.Fatalf("%+v", report.Gates)
	}
	for i := range stillPasses {
		if !n.inspector.Rests(t.Context()) {
			t.Fatalf("no rest before pass %d, although nothing waits for the gate", i+2)
		}
	}
}

// Time alone opens no other gate. Passes then come so often that the report says since when it is closed.
func TestClosedGateShortensTheRest(t *testing.T) {
	n := restingNode(t)
	n.host.Cluster.Still = func(time.Duration) bool { return true }
	n.inspector.settings.HostNamespaces = false
	n.inspector.rest.quiet = false
	passes := 0
	var report object.Report
	for range 61 {
		if !n.inspector.Rests(t.Context()) {
			report = n.wholePass()
			passes++
		}
		n.after(n.inspector.settings.Every + n.inspector.settings.Every/20) // as late as the engine is
	}
	if got := report.At.Since(gateOf(report, "host-namespaces").Since); got < time.Hour {
		t.Errorf("closed for %s after an hour and %d passes", got, passes)
	}
	if passes > 61/(restingPasses+1)+1 {
		t.Errorf("%d passes in an hour", passes)
	}
}

func TestRestEnds(t *testing.T) {
	mkdir := func(dir string) func(*fullNode) {
		return func(n *fullNode) {
			if err := os.MkdirAll(n.host.Files.Path(dir), 0o755); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	for name, change := range map[string]func(*fullNode){
		"a directory of a pod": func(n *fullNode) { mkdir(n.host.Paths.KubeletRoot + "/pods/" + inspecttest.UIDOf(20))(n) },
		"a directory that goes": func(n *fullNode) {
			if err := os.Remove(n.host.Files.Path(n.host.Paths.KubeletRoot + "/pods/" + inspecttest.UIDOf(1))); err != nil {
				n.t.Fatal(err)
			}
		},
		"one directory for another": func(n *fullNode) {
			pods := n.host.Files.Path(n.host.Paths.KubeletRoot + "/pods/")
			if err := os.Rename(pods+"/"+inspecttest.UIDOf(1), pods+"/"+inspecttest.UIDOf(2)); err != nil {
				n.t.Fatal(err)
			}
		},
		"a cgroup":            mkdir("/sys/fs/cgroup/memory/kubepods/burstable/pod" + inspecttest.UIDOf(20)),
		"a network device":    mkdir("/sys/class/net/veth1"),
		"a network namespace": func(n *fullNode) { n.write(n.host.Paths.NetnsDirs[0]+"/cni-1", "") },
		"an attachment":       func(n *fullNode) { n.write(n.host.Paths.CNICacheDir+"/results/net-1-eth0", "{}") },
		"a mount": func(n *fullNode) {
			n.write(mountTable, restingMounts+"40 21 0:40 / /mnt rw - tmpfs tmpfs rw\n")
		},
		"another mount in the same place": func(n *fullNode) {
			n.write(mountTable, "23"+restingMounts[2:])
		},
		"a mount table that cannot be read": func(n *fullNode) { n.write(mountTable, "rubbish\n") },
		"another kubelet": func(n *fullNode) {
			n.host.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 4711, StartTime: 9}, nil }
		},
		"no kubelet": func(n *fullNode) {
			n.host.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errors.New("none runs") }
		},
		"another runtime": func(n *fullNode) {
			n.host.Runtime.Process = func(context.Context) (host.Process, error) {
				return host.Process{PID: 4712, StartTime: 9}, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := restingNode(t)
			change(n)
			if n.inspector.Rests(t.Context()) {
				t.Error("rests although the node has changed")
			}
		})
	}
}

// Suspicious, unknown and remembered objects are checked in each pass.
func TestNoRestWhileSomethingIsSuspicious(t *testing.T) {
	for name, change := range map[string]func(*fullNode){
		"a pod is gone":     func(n *fullNode) { n.delete(inspecttest.UIDOf(1)) },
		"kubelet is silent": func(n *fullNode) { n.host.Kubelet.Pods = nil },
		"another kubelet was here": func(n *fullNode) {
			n.history["other-kubelet"] = object.Sighting{Identity: object.Identity{Names: map[string]string{"kubelet": "k3s"}}, First: n.now,
				Last: n.now}
		},
		"the runtime is silent": func(n *fullNode) { n.host.Runtime.Sandboxes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := restingNode(t)
			change(n)
			n.inspector.rest.quiet = false // the next whole pass is due
			for i := range 3 {
				if n.inspector.Rests(t.Context()) {
					t.Fatalf("rests before pass %d", i+1)
				}
				n.wholePass()
			}
		})
	}
}

// A pass over some kinds tells nothing of the others.
func TestNoRestAfterAPassOverSomeKinds(t *testing.T) {
	n := restingNode(t)
	n.inspector.Pass(t.Context(), nil, object.Mount)
	if n.inspector.Rests(t.Context()) {
		t.Error("rests")
	}
}

// Opt-in objects do not keep the agent awake while none can be released; they and report-only objects are no
// orphaned pods: they may stay forever. A release may follow their proof.
func TestOptedInIsQuiet(t *testing.T) {
	o := object.Assessment{Object: object.Object{Kind: object.Shim}, FirstSeen: inspecttest.At(time.Minute)}
	next := object.History{"shim/x": {}}
	for verdict, want := range map[object.Verdict]bool{object.Candidate: true, object.Unowned: true,
		object.Leftover: false, object.Unknown: false} {
		o.Verdict = verdict
		if got := quiet(object.Report{At: inspecttest.At(2 * time.Hour), Objects: []object.Assessment{o}}, next,
			[]object.Kind{object.Shim}); got != want {
			t.Errorf("%s: %t", verdict, got)
		}
		if verdict == object.Leftover && !quiet(object.Report{At: inspecttest.At(2 * time.Hour),
			Objects: []object.Assessment{o}}, next, nil) {
			t.Error("awake beside what nobody has opted in")
		}
	}
}

// A report-only candidate does not keep the agent awake forever.
func TestLastingCandidateIsQuiet(t *testing.T) {
	o := object.Assessment{Object: object.Object{Kind: object.Task}, Verdict: object.Candidate,
		FirstSeen: inspecttest.At(time.Minute)}
	next := object.History{"task/x": {}}
	for age, want := range map[time.Duration]bool{30 * time.Minute: false, 2 * time.Hour: true} {
		if got := quiet(object.Report{At: inspecttest.At(age), Objects: []object.Assessment{o}}, next,
			[]object.Kind{object.Shim}); got != want {
			t.Errorf("after %s: %t", age, got)
		}
	}
	o.Kind = object.Mount
	if quiet(object.Report{At: inspecttest.At(2 * time.Hour), Objects: []object.Assessment{o}}, next,
		[]object.Kind{object.Shim}) {
		t.Error("a release waits for the mount")
	}
}
