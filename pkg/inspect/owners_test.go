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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// passes makes this many passes, each a while after the last.
func passes(t *testing.T, n *node, i *Inspector, history History, times int, apart time.Duration) (Report, History) {
	t.Helper()
	var report Report
	for range times {
		n.After(apart)
		report, history = i.Pass(t.Context(), history)
		noErrors(t, report)
	}
	return report, history
}

// verdictsOf returns the verdicts on the objects of some kinds, whoever owns them.
func verdictsOf(report Report, kinds ...Kind) map[Kind]Verdict {
	found := make(map[Kind]Verdict)
	for _, o := range report.Objects {
		if slices.Contains(kinds, o.Kind) && o.Verdict != Foreign {
			found[o.Kind] = o.Verdict
		}
	}
	return found
}

// CNI DEL has removed the cache file, and a process visits the namespace for a moment: it remains the pod's. With a new
// namespace under the name, in another boot, or without a history, its owner is unknown.
func TestOwnerOutlivesTheCache(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	netns := n.Attach(dead, deadSandbox)
	i := n.inspector()
	_, history := passes(t, n, i, nil, 4, 4*time.Minute)
	if err := os.RemoveAll(filepath.Join(n.Host.Paths.CNICacheDir, "results")); err != nil {
		t.Fatal(err)
	}
	want := map[Kind]Verdict{Netns: Leftover, Link: Leftover}
	report, history := passes(t, n, i, history, 1, time.Minute)
	if diff := cmp.Diff(want, verdictsOf(report, Netns, Link)); diff != "" {
		t.Error(diff, whys(report, dead))
	}
	visitor := n.ProcessIn(netns)
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
	deadline := time.After(time.Minute)
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
	netns := Identity{"inode": "7"}
	link := Identity{"index": "3", "peerIndex": "2", "peerNamespace": "5", "mac": "m", namespaceKey: "7"}
	loose := maps.Clone(link)
	delete(loose, namespaceKey)
	otherPeer := maps.Clone(loose)
	otherPeer["peerNamespace"] = "6"
	history := History{
		"netns/p": {Identity: netns, First: at(time.Minute), Passes: 3, Pod: Pod{UID: dead}, SandboxID: deadSandbox},
		"link/l":  {Identity: link, First: at(time.Minute), Passes: 3, Pod: Pod{UID: dead}, SandboxID: deadSandbox},
	}
	for name, test := range map[string]struct {
		object   Object
		owner    string // UID afterwards
		foreign  bool
		recalled bool
	}{
		"the same netns":    {Object{Kind: Netns, ID: "p", Identity: netns}, dead, false, true},
		"another namespace": {Object{Kind: Netns, ID: "p", Identity: Identity{"inode": "8"}}, "", false, false},
		"another path":      {Object{Kind: Netns, ID: "q", Identity: netns}, "", false, false},
		"only the file": {Object{Kind: Netns, ID: "p", Identity: Identity{"device": "1:2", "inode": "9"},
			Facts: Facts("state", emptyFile)}, dead, false, true},
		"a foreign netns": {Object{Kind: Netns, ID: "p", Identity: netns, Foreign: "created by hand"}, "", true,
			false},
		"still attributed": {Object{Kind: Netns, ID: "p", Identity: netns, Pod: Pod{UID: dead},
			SandboxID: deadSandbox}, dead, false, false},
		"another claims it": {Object{Kind: Netns, ID: "p", Identity: netns, Pod: Pod{UID: dead},
			SandboxID: newSandbox}, dead, true, false},
		"the same link": {Object{Kind: Link, ID: "l", Identity: link}, dead, false, true},
		"its netns is gone": {Object{Kind: Link, ID: "l", Identity: loose, Foreign: "no runtime pinned"}, dead,
			false, true},
		"its peer moved": {Object{Kind: Link, ID: "l", Identity: otherPeer, Foreign: "no runtime pinned"}, "",
			true, false},
		"not remembered": {Object{Kind: Link, ID: "k", Identity: loose, Foreign: "no runtime pinned"}, "", true,
			false},
		"no kind to remember": {Object{Kind: CNIAttachment, ID: "p", Identity: netns}, "", false, false},
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

// A network namespace without an owner may belong to a starting pod. If it stays, it is reported as unowned: no error,
// no leftover, no request to the apiserver. One with a process in it is foreign.
func TestNamespaceWithoutOwner(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	netns := filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+other)
	hosttest.PinNetns(t, netns)
	n.Mkdir(n.Host.Paths.CNICacheDir, "results")
	// a crash in the middle of a write
	write(t, filepath.Join(n.Host.Paths.CNICacheDir, "results", "cut"), `{"kind":"cniCa`)
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
	if n.Requests != 0 {
		t.Errorf("%d requests to the apiserver", n.Requests)
	}
	n.ProcessIn(netns)
	report, _ = passes(t, n, i, history, 1, time.Minute)
	if got := verdictsOf(report, Netns); len(got) != 0 {
		t.Errorf("inhabited: %v", got)
	}
}

// The owner of a network namespace without a cached result comes from the runtime's status of its sandbox. Without that
// status the owner is unknown; a sandbox removed meanwhile owns no namespace.
func TestOwnerByTheRuntime(t *testing.T) {
	netns := func(n *node) string { return filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+other) }
	for name, test := range map[string]struct {
		info string
		err  error
		want Verdict
		uid  string
	}{
		"known":         {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"%"}}}`, nil, Live, living},
		"elsewhere":     {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"/run/netns/x"}}}`, nil, Unowned, ""},
		"removed":       {"", status.Error(codes.NotFound, "gone"), Unowned, ""},
		"not to be had": {"", errors.New("away"), Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			hosttest.PinNetns(t, netns(n))
			n.Sandbox(living, sandbox)
			n.Host.Runtime.SandboxStatus = func(context.Context, string) (*cri.PodSandboxStatusResponse, error) {
				return &cri.PodSandboxStatusResponse{Info: map[string]string{"info": strings.ReplaceAll(test.info, "%",
					netns(n))}}, test.err
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

// If two sandboxes claim one object, neither owns it.
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

// A namespace with unknown processes is unknown.
func TestUnreadableNetworkIsUnknown(t *testing.T) {
	scan := hostscan.New(t.Context(), hosttest.Host(t), hostscan.Deadline{})
	scan.Processes = func() (hostscan.ProcessTable, error) { return hostscan.ProcessTable{}, errors.New("away") }
	o := object(Netns, dead)
	if explainNetwork(scan, []*Object{&o}); !strings.Contains(o.Doubt, "away") {
		t.Errorf("doubt %q", o.Doubt)
	}
}

func TestNetnsOfStatus(t *testing.T) {
	for name, test := range map[string]struct{ info, want string }{
		"containerd 1 and CRI-O": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/a"}]}}}`, "/run/netns/a"},
		"containerd 2": {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/a"}]}},
			"sandboxMetadata":{"Version":"v1","Metadata":{"ID":"x","NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"containerd 2, no container": {`{"processStatus":"deleted","runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/run/netns/a"}}}`, "/run/netns/a"},
		"the host's network":         {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}},"sandboxMetadata":{"Metadata":{"NetNSPath":""}}}`, ""},
		"no information":             {"", ""},
		"malformed":                  {`{"runtimeSpec":3}`, ""},
	} {
		answer := &cri.PodSandboxStatusResponse{Info: map[string]string{"info": test.info}}
		if got := netnsOfStatus(answer); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
