package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// passes makes so many passes, each a while after the last.
func passes(t *testing.T, n *node, i *Inspector, history History, times int, apart time.Duration) (Report, History) {
	t.Helper()
	var report Report
	for range times {
		n.after(apart)
		report, history = i.Pass(t.Context(), history)
		noErrors(t, report)
	}
	return report, history
}

// verdictsOf returns the verdicts on the objects of some kinds, whosever they are.
func verdictsOf(report Report, kinds ...Kind) map[Kind]Verdict {
	found := make(map[Kind]Verdict)
	for _, o := range report.Objects {
		if slices.Contains(kinds, o.Kind) && o.Verdict != Foreign {
			found[o.Kind] = o.Verdict
		}
	}
	return found
}

// CNI DEL has taken away the cache file, and a process visits the namespace for a moment: it stays the pod's all the
// same. A namespace that is pinned anew under the name, another boot, or no memory at all: nothing tells whose it is.
func TestOwnerOutlivesTheCache(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	netns := n.attach(dead, deadSandbox)
	i := n.inspector()
	_, history := passes(t, n, i, nil, 4, 4*time.Minute)
	if err := os.RemoveAll(filepath.Join(n.host.Paths.CNICacheDir, "results")); err != nil {
		t.Fatal(err)
	}
	want := map[Kind]Verdict{Netns: Leftover, Link: Leftover}
	report, history := passes(t, n, i, history, 1, time.Minute)
	if diff := cmp.Diff(want, verdictsOf(report, Netns, Link)); diff != "" {
		t.Error(diff, whys(report, dead))
	}
	visitor := n.processIn(netns)
	report, history = passes(t, n, i, history, 1, time.Minute)
	if got := verdictsOf(report, Netns, Link); len(got) != 0 {
		t.Errorf("with a visitor: %v", got)
	}
	_ = unix.Kill(visitor, unix.SIGKILL)
	awaitGone(t, visitor)
	report, history = passes(t, n, i, history, 4, 4*time.Minute)
	if diff := cmp.Diff(want, verdictsOf(report, Netns, Link)); diff != "" {
		t.Error("after the visit: ", diff)
	}

	earlier := maps.Clone(history)
	for k, s := range earlier {
		s.First.Boot = "another"
		earlier[k] = s
	}
	young := map[Kind]Verdict{Netns: Live, Link: Live}
	for name, history := range map[string]History{"another boot": earlier, "no memory": nil} {
		report, _ := i.Pass(t.Context(), history)
		if diff := cmp.Diff(young, verdictsOf(report, Netns, Link)); diff != "" {
			t.Error(name, diff)
		}
	}
	if err := unix.Unmount(netns, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	hosttest.PinNetns(t, filepath.Join(t.TempDir(), "keeps-the-number"))
	hosttest.PinNetns(t, netns)
	report, _ = i.Pass(t.Context(), history)
	for _, o := range report.Objects {
		if o.Kind == Netns && o.Pod.UID != "" && o.Identity["inode"] != history["netns/"+netns].Identity["inode"] {
			t.Errorf("another namespace under the name is taken for the pod's: %+v", o)
		}
	}
}

func awaitGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(data), ") Z ") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %d does not end", pid)
		case <-tick.C:
		}
	}
}

func TestRecall(t *testing.T) {
	pin := Identity{"inode": "7"}
	link := Identity{"index": "3", "peerIndex": "2", "peerNamespace": "5", "mac": "m", namespaceKey: "7"}
	loose := maps.Clone(link)
	delete(loose, namespaceKey)
	otherPeer := maps.Clone(loose)
	otherPeer["peerNamespace"] = "6"
	history := History{
		"netns/p": {Identity: pin, First: at(time.Minute), Passes: 3, Pod: Pod{UID: dead}, SandboxID: deadSandbox},
		"link/l":  {Identity: link, First: at(time.Minute), Passes: 3, Pod: Pod{UID: dead}, SandboxID: deadSandbox},
	}
	for name, test := range map[string]struct {
		object   Object
		owner    string // UID afterwards
		foreign  bool
		recalled bool
	}{
		"the same pin":      {Object{Kind: Netns, ID: "p", Identity: pin}, dead, false, true},
		"another namespace": {Object{Kind: Netns, ID: "p", Identity: Identity{"inode": "8"}}, "", false, false},
		"another path":      {Object{Kind: Netns, ID: "q", Identity: pin}, "", false, false},
		"only the file": {Object{Kind: Netns, ID: "p", Identity: Identity{"device": "1:2", "inode": "9"},
			Facts: facts("state", emptyFile)}, dead, false, true},
		"a foreign pin": {Object{Kind: Netns, ID: "p", Identity: pin, Foreign: "made by hand"}, "", true,
			false},
		"still tied": {Object{Kind: Netns, ID: "p", Identity: pin, Pod: Pod{UID: dead},
			SandboxID: deadSandbox}, dead, false, false},
		"another claims it": {Object{Kind: Netns, ID: "p", Identity: pin, Pod: Pod{UID: dead},
			SandboxID: newSandbox}, dead, true, false},
		"the same link": {Object{Kind: Link, ID: "l", Identity: link}, dead, false, true},
		"its pin is gone": {Object{Kind: Link, ID: "l", Identity: loose, Foreign: "no runtime pinned"}, dead,
			false, true},
		"its peer moved": {Object{Kind: Link, ID: "l", Identity: otherPeer, Foreign: "no runtime pinned"}, "",
			true, false},
		"not remembered": {Object{Kind: Link, ID: "k", Identity: loose, Foreign: "no runtime pinned"}, "", true,
			false},
		"no kind to remember": {Object{Kind: CNIAttachment, ID: "p", Identity: pin}, "", false, false},
		"both ends on the host": {Object{Kind: Link, ID: "l", Identity: Identity{"peerNamespace": "-1"},
			Foreign: "both ends"}, "", true, false},
	} {
		objects := []Object{test.object}
		objects[0].Identity = maps.Clone(objects[0].Identity)
		recalled := recall(objects, history, hour)
		o := objects[0]
		if o.Pod.UID != test.owner || (o.Foreign != "") != test.foreign || recalled[key(&o)] != test.recalled {
			t.Errorf("%s: owner %q, foreign %q, recalled %v", name, o.Pod.UID, o.Foreign, recalled)
		}
		if o.Kind == Link && test.recalled && !maps.Equal(o.Identity, link) {
			t.Errorf("%s: identity %v", name, o.Identity)
		}
	}
}

// A pin that nothing ties to a pod may be of a pod that is starting. When it stays it is told of as what it is: no
// error, no leftover, no question to the apiserver. One in which somebody lives is that one's.
func TestPinOfNobody(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	pin := filepath.Join(n.host.Paths.NetnsDirs[0], "cni-"+other)
	hosttest.PinNetns(t, pin)
	n.mkdir(n.host.Paths.CNICacheDir, "results")
	// a crash in the middle of a write
	write(t, filepath.Join(n.host.Paths.CNICacheDir, "results", "cut"), `{"kind":"cniCa`)
	kinds := []Kind{Netns, CNIAttachment}
	i := n.inspector()
	report, history := passes(t, n, i, nil, 1, time.Minute)
	if diff := cmp.Diff(map[Kind]Verdict{Netns: Live, CNIAttachment: Live}, verdictsOf(report, kinds...)); diff != "" {
		t.Error("young: ", diff)
	}
	report, history = passes(t, n, i, history, 3, 4*time.Minute)
	if diff := cmp.Diff(map[Kind]Verdict{Netns: Unowned, CNIAttachment: Unowned},
		verdictsOf(report, kinds...)); diff != "" {
		t.Error("old: ", diff)
	}
	if n.requests != 0 {
		t.Errorf("%d requests to the apiserver", n.requests)
	}
	n.processIn(pin)
	report, _ = passes(t, n, i, history, 1, time.Minute)
	if got := verdictsOf(report, Netns); len(got) != 0 {
		t.Errorf("inhabited: %v", got)
	}
}

// Who owns a pin without a cached result is told by the runtime's status of its sandbox. Where that cannot be had,
// nobody can say; a sandbox that has been removed meanwhile is nobody.
func TestOwnerByTheRuntime(t *testing.T) {
	pin := func(n *node) string { return filepath.Join(n.host.Paths.NetnsDirs[0], "cni-"+other) }
	for name, test := range map[string]struct {
		info string
		err  error
		want Verdict
		uid  string
	}{
		"told":          {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"%"}}}`, nil, Live, living},
		"elsewhere":     {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"/run/netns/x"}}}`, nil, Unowned, ""},
		"removed":       {"", status.Error(codes.NotFound, "gone"), Unowned, ""},
		"not to be had": {"", errors.New("away"), Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			hosttest.PinNetns(t, pin(n))
			n.sandbox(living, sandbox)
			n.host.Runtime.SandboxStatus = func(context.Context, string) (*cri.PodSandboxStatusResponse, error) {
				return &cri.PodSandboxStatusResponse{Info: map[string]string{"info": strings.ReplaceAll(test.info, "%",
					pin(n))}}, test.err
			}
			report, _ := n.inspector(func(s *Settings) {
				*s = Settings{HostNamespaces: true, MassOrphaning: 100}
			}).Pass(t.Context(), nil)
			for _, o := range report.Objects {
				if o.Kind == Netns && (o.Verdict != test.want || o.Pod.UID != test.uid) {
					t.Errorf("%s of %q: %s", o.Verdict, o.Pod.UID, o.Why)
				}
			}
			if failed := len(report.Errors) > 0; failed != (test.want == Unknown) {
				t.Errorf("errors: %v", report.Errors)
			}
		})
	}
}

// Two sandboxes that claim one thing: it is neither's.
func TestClaimedByTwo(t *testing.T) {
	owners := make(map[string][]owner)
	add(owners, "p", owner{sandbox, Pod{UID: dead, Name: "a"}})
	add(owners, "p", owner{sandbox, Pod{UID: dead}}) // the same
	o := Object{Kind: Netns, ID: "p"}
	if attachOwner(&o, owners["p"]); o.Foreign != "" || o.Pod.UID != dead || o.SandboxID != sandbox {
		t.Errorf("one: %+v", o)
	}
	add(owners, "p", owner{newSandbox, Pod{UID: other}})
	o = Object{Kind: Netns, ID: "p"}
	if attachOwner(&o, owners["p"]); !strings.Contains(o.Foreign, "two sandboxes") || o.Pod.UID != "" {
		t.Errorf("two: %+v", o)
	}
}

// Where nobody can say who lives in a namespace, nothing is said of it.
func TestFailedNetworkLookIsDoubt(t *testing.T) {
	scan := NewScan(t.Context(), hosttest.Host(t))
	scan.processes = func() (processTable, error) { return processTable{}, errors.New("away") }
	o := object(Netns, dead)
	if explainInhabitants(scan, []*Object{&o}); !strings.Contains(o.Doubt, "away") {
		t.Errorf("doubt %q", o.Doubt)
	}
}

// leaseWorld is a node on which nothing is left of a dead pod's sandbox but its lease and its network.
func leaseWorld(t *testing.T) *node {
	t.Helper()
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.attach(dead, deadSandbox)
	n.leases = append(n.leases, leases.Lease{ID: deadSandbox})
	return n
}

var leaseKinds = []Kind{Lease, CNIAttachment, Netns, Link}

func allOf(v Verdict) map[Kind]Verdict {
	return map[Kind]Verdict{Lease: v, CNIAttachment: v, Netns: v, Link: v}
}

// A lease that outlived a crash of containerd is a leftover after passes and grace, and the network of its sandbox
// with it; not a moment before, for a sandbox that is being made has its lease before all else.
func TestLeaseOfADeadSandbox(t *testing.T) {
	n := leaseWorld(t)
	i := n.inspector()
	report, history := passes(t, n, i, nil, 3, 4*time.Minute)
	if diff := cmp.Diff(allOf(Candidate), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error("before the grace: ", diff)
	}
	report, history = passes(t, n, i, history, 1, 4*time.Minute)
	if diff := cmp.Diff(allOf(Leftover), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error(diff, whys(report, dead))
	}
	if err := os.RemoveAll(filepath.Join(n.host.Paths.CNICacheDir, "results")); err != nil { // as after CNI DEL
		t.Fatal(err)
	}
	report, _ = passes(t, n, i, history, 1, time.Minute)
	if diff := cmp.Diff(map[Kind]Verdict{Lease: Leftover}, verdictsOf(report, Lease)); diff != "" {
		t.Error("after DEL: ", diff)
	}
}

// Whatever still carries the sandbox keeps the lease, and the lease keeps the network.
func TestLeaseOfASandboxThatIsNotGone(t *testing.T) {
	for name, bend := range map[string]func(n *node){
		"CRI has it": func(n *node) {
			n.sandboxes = append(n.sandboxes, &cri.PodSandbox{Id: deadSandbox,
				Metadata: &cri.PodSandboxMetadata{Uid: dead}})
		},
		"containerd's container": func(n *node) {
			n.records = append(n.records, containers.Container{ID: deadSandbox,
				Labels: map[string]string{kindLabel: "sandbox"}})
		},
		"containerd's record": func(n *node) { n.stored = []string{deadSandbox} },
		"containerd's task":   func(n *node) { n.tasks = []*tasks.Process{{ID: deadSandbox}} },
		"nobody can say":      func(n *node) { n.carrierErr = errors.New("away") },
		"the pod is known":    func(n *node) { n.add(dead, "p") },
		"the lease has a label": func(n *node) {
			n.leases[0].Labels = map[string]string{"containerd.io/gc.expire": "tomorrow"}
		},
		"another client's lease": func(n *node) { n.leases[0].Labels = map[string]string{"x": "y"} },
		"nothing at all":         func(n *node) { n.leases[0].CreatedAt = time.Time{} }, // the control
		"containerd is not heard": func(n *node) {
			n.host.Containerd.Containers = func(context.Context) ([]containers.Container, error) {
				return nil, errors.New("away")
			}
		},
	} {
		checkLease(t, name, bend, name == "nothing at all")
	}
}

// A shim that outlived its sandbox, too.
func TestLeaseOfASandboxWithAShim(t *testing.T) {
	checkLease(t, "a shim", func(n *node) { n.shim(deadSandbox) }, false)
}

// checkLease makes passes long enough and looks whether the lease, and the network with it, has become a leftover.
func checkLease(t *testing.T, name string, bend func(*node), leftover bool) {
	t.Helper()
	n := leaseWorld(t)
	bend(n)
	i := n.inspector()
	var report Report
	var history History
	for range 5 {
		n.after(4 * time.Minute)
		report, history = i.Pass(t.Context(), history)
	}
	for _, kind := range leaseKinds {
		if got := verdictsOf(report, kind)[kind]; (got == Leftover) != leftover {
			t.Errorf("%s: %s is %q\n%s", name, kind, got, whys(report, dead))
		}
	}
}

// shim runs a process that has the ID of a sandbox on its command line.
func (n *node) shim(id string) {
	n.t.Helper()
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		n.t.Fatal(err)
	}
	program := filepath.Join(n.t.TempDir(), "containerd-shim-runc-v2")
	if err := os.WriteFile(program, shell, 0o700); err != nil {
		n.t.Fatal(err)
	}
	process, err := os.StartProcess(program, []string{program, "-c", "sleep 60; :", "-", "-namespace", "k8s.io", "-id",
		id}, &os.ProcAttr{Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = syscall.Kill(-process.Pid, syscall.SIGKILL); _, _ = process.Wait() })
}

// Leases of other forms are nobody's of ours, and one that nothing ties to a pod is only told of.
func TestLeasesOfOthers(t *testing.T) {
	n := newNode(t)
	n.leases = []leases.Lease{
		{ID: "1234-abcd"}, {ID: strings.ToUpper(strings.Repeat("ab", 32))}, {ID: deadSandbox + "0"},
		{ID: deadSandbox, Labels: map[string]string{"containerd.io/gc.flat": "1"}}, {ID: newSandbox},
	}
	report, _ := passes(t, n, n.inspector(), nil, 1, time.Minute)
	got := verdicts(report)[Lease]
	if diff := cmp.Diff(map[Verdict]int{Foreign: 4, Live: 1}, got); diff != "" {
		t.Error(diff)
	}
	report, _ = n.inspector(func(s *Settings) {
		*s = Settings{HostNamespaces: true, MassOrphaning: 9}
	}).Pass(t.Context(), nil)
	if diff := cmp.Diff(map[Verdict]int{Foreign: 4, Unowned: 1}, verdicts(report)[Lease]); diff != "" {
		t.Error(diff)
	}
	n.host.Containerd = host.Containerd{} // another runtime
	if objects, err := listLeases(t.Context(), NewScan(t.Context(), n.host)); len(objects) != 0 || err != nil {
		t.Errorf("%v, %v", objects, err)
	}
}

// A sandbox that is being made has its lease before all else, then its namespace, then its attachment; CRI lists it
// last. At no moment is any of it a leftover, however long that takes within the grace, nor when the lists of pods
// lag behind.
func TestStartingSandboxKeepsItsLease(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	n.leases = append(n.leases, leases.Lease{ID: newSandbox})
	i := n.inspector()
	never := func(report Report, what string) {
		t.Helper()
		for kind, verdict := range verdictsOf(report, leaseKinds...) {
			if verdict == Leftover || verdict == Unowned {
				t.Errorf("%s: %s is %s", what, kind, verdict)
			}
		}
	}
	report, history := passes(t, n, i, nil, 3, time.Minute)
	never(report, "lease alone")
	n.attach(other, newSandbox)
	report, history = passes(t, n, i, history, 3, 3*time.Minute)
	never(report, "attached, and no list has the pod")
	n.add(other, "late")
	report, history = passes(t, n, i, history, 2, 10*time.Minute)
	if diff := cmp.Diff(allOf(Live), verdictsOf(report, leaseKinds...)); diff != "" {
		t.Error("listed: ", diff)
	}
	n.remove(other)
	report, _ = passes(t, n, i, history, 2, 4*time.Minute)
	never(report, "deleted a moment ago")
}

// A lease that is a leftover says nothing more of the network; a container of that ID does. (No lease is a leftover
// beside one: this holds even if that were wrong.)
func TestDeadLeaseDoesNotSpeakForContainers(t *testing.T) {
	truth := healthy()
	j := evaluation{truth: &truth, deadLeases: map[string]bool{deadSandbox: true}}
	o := Object{Kind: Netns, SandboxID: deadSandbox}
	for known, want := range map[string]bool{leaseName: true, "container": false} {
		truth.Containerd.Known[deadSandbox] = known
		if got := j.onlyDeadLease(&o); got != want {
			t.Errorf("%s: %v", known, got)
		}
	}
	o.Kind = Cgroup
	truth.Containerd.Known[deadSandbox] = leaseName
	if j.onlyDeadLease(&o) {
		t.Error("a cgroup is no matter of leases")
	}
}
