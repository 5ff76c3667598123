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
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// passes makes this many passes, each a while after the last.
func passes(t *testing.T, n *node, i *Inspector, history object.History, times int, apart time.Duration) (object.Report,
	object.History) {
	t.Helper()
	var report object.Report
	for range times {
		n.After(apart)
		report, history = i.Pass(t.Context(), history)
		inspecttest.NoErrors(t, report)
	}
	return report, history
}

// verdictsOf returns the verdicts on the objects of some kinds, whoever owns them.
func verdictsOf(report object.Report, only ...object.Kind) map[object.Kind]object.Verdict {
	found := make(map[object.Kind]object.Verdict)
	for _, o := range report.Objects {
		if slices.Contains(only, o.Kind) && o.Verdict != object.Foreign {
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
	want := map[object.Kind]object.Verdict{object.Netns: object.Leftover, object.Link: object.Leftover}
	report, history := passes(t, n, i, history, 1, time.Minute)
	if diff := cmp.Diff(want, verdictsOf(report, object.Netns, object.Link)); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead))
	}
	visitor := n.ProcessIn(netns)
	report, history = passes(t, n, i, history, 1, time.Minute)
	if got := verdictsOf(report, object.Netns, object.Link); len(got) != 0 {
		t.Errorf("with a visitor: %v", got)
	}
	_ = unix.Kill(visitor, unix.SIGKILL)
	awaitGone(t, visitor)
	report, history = passes(t, n, i, history, 4, 4*time.Minute)
	if diff := cmp.Diff(want, verdictsOf(report, object.Netns, object.Link)); diff != "" {
		t.Error("after the visit: ", diff)
	}

	earlier := maps.Clone(history)
	for k, s := range earlier {
		s.First.Boot = "another"
		earlier[k] = s
	}
	young := map[object.Kind]object.Verdict{object.Netns: object.Live, object.Link: object.Live}
	for name, history := range map[string]object.History{"another boot": earlier, "no memory": nil} {
		report, _ := i.Pass(t.Context(), history)
		if diff := cmp.Diff(young, verdictsOf(report, object.Netns, object.Link)); diff != "" {
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
		if o.Kind == object.Netns && o.Pod.UID != "" && o.Identity.File.Inode != history["netns/"+netns].Identity.File.Inode {
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
	netns := object.Identity{File: object.FileID{Inode: 7}}
	link := object.Identity{Link: object.LinkID{Index: 3, PeerIndex: 2, PeerNamespace: 5, MAC: "m", Namespace: 7}}
	loose := link
	loose.Link.Namespace = 0
	otherPeer := loose
	otherPeer.Link.PeerNamespace = 6
	history := object.History{
		"netns/p": {Identity: netns, First: inspecttest.At(time.Minute), Passes: 3, Pod: object.Pod{UID: dead},
			SandboxID: deadSandbox},
		"link/l": {Identity: link, First: inspecttest.At(time.Minute), Passes: 3, Pod: object.Pod{UID: dead},
			SandboxID: deadSandbox},
	}
	for name, test := range map[string]struct {
		object   object.Object
		owner    string // UID afterwards
		foreign  bool
		recalled bool
	}{
		"the same netns": {object.Object{Kind: object.Netns, ID: "p", Identity: netns}, dead, false, true},
		"another namespace": {object.Object{Kind: object.Netns, ID: "p", Identity: object.Identity{File: object.FileID{Inode: 8}}}, "",
			false, false},
		"another path": {object.Object{Kind: object.Netns, ID: "q", Identity: netns}, "", false, false},
		"only the file": {object.Object{Kind: object.Netns, ID: "p", Identity: object.Identity{File: object.FileID{Device: "1:2",
			Inode: 9}},
			Facts: object.Facts("state", kinds.EmptyFile)}, dead, false, true},
		"a foreign netns": {object.Object{Kind: object.Netns, ID: "p", Identity: netns, Foreign: "created by hand"}, "",
			true,
			false},
		"still attributed": {object.Object{Kind: object.Netns, ID: "p", Identity: netns, Pod: object.Pod{UID: dead},
			SandboxID: deadSandbox}, dead, false, false},
		"another claims it": {object.Object{Kind: object.Netns, ID: "p", Identity: netns, Pod: object.Pod{UID: dead},
			SandboxID: newSandbox}, dead, true, false},
		"the same link": {object.Object{Kind: object.Link, ID: "l", Identity: link}, dead, false, true},
		"its netns is gone": {object.Object{Kind: object.Link, ID: "l", Identity: loose, Foreign: "no runtime pinned"},
			dead,
			false, true},
		"its peer moved": {object.Object{Kind: object.Link, ID: "l", Identity: otherPeer, Foreign: "no runtime pinned"}, "",
			true, false},
		"not remembered": {object.Object{Kind: object.Link, ID: "k", Identity: loose, Foreign: "no runtime pinned"}, "",
			true,
			false},
		"no kind to remember": {object.Object{Kind: object.CNIAttachment, ID: "p", Identity: netns}, "", false, false},
		"both ends on the host": {object.Object{Kind: object.Link, ID: "l",
			Identity: object.Identity{Link: object.LinkID{PeerNamespace: -1}},
			Foreign:  "both ends"}, "", true, false},
	} {
		objects := []object.Object{test.object}
		recalled := recall(objects, history, inspecttest.Hour)
		o := objects[0]
		if o.Pod.UID != test.owner || (o.Foreign != "") != test.foreign || recalled[object.Key(&o)] != test.recalled {
			t.Errorf("%s: owner %q, foreign %q, recalled %v", name, o.Pod.UID, o.Foreign, recalled)
		}
		if o.Kind == object.Link && test.recalled && !o.Identity.Equal(link) {
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
	network := []object.Kind{object.Netns, object.CNIAttachment}
	i := n.inspector()
	report, history := passes(t, n, i, nil, 1, time.Minute)
	if diff := cmp.Diff(map[object.Kind]object.Verdict{object.Netns: object.Live, object.CNIAttachment: object.Live},
		verdictsOf(report, network...)); diff != "" {
		t.Error("young: ", diff)
	}
	report, history = passes(t, n, i, history, 3, 4*time.Minute)
	if diff := cmp.Diff(map[object.Kind]object.Verdict{object.Netns: object.Unowned, object.CNIAttachment: object.Unowned},
		verdictsOf(report, network...)); diff != "" {
		t.Error("old: ", diff)
	}
	if n.Requests != 0 {
		t.Errorf("%d requests to the apiserver", n.Requests)
	}
	n.ProcessIn(netns)
	report, _ = passes(t, n, i, history, 1, time.Minute)
	if got := verdictsOf(report, object.Netns); len(got) != 0 {
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
		want object.Verdict
		uid  string
	}{
		"known":         {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"%"}}}`, nil, object.Live, living},
		"elsewhere":     {`{"sandboxMetadata":{"Metadata":{"NetNSPath":"/run/netns/x"}}}`, nil, object.Unowned, ""},
		"removed":       {"", status.Error(codes.NotFound, "gone"), object.Unowned, ""},
		"not to be had": {"", errors.New("away"), object.Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			hosttest.PinNetns(t, netns(n))
			n.Sandbox(living, sandbox)
			n.Host.Runtime.SandboxStatus = func(context.Context, string) (*cri.PodSandboxStatusResponse, error) {
				return &cri.PodSandboxStatusResponse{Info: map[string]string{"info": strings.ReplaceAll(test.info, "%",
					netns(n))}}, test.err
			}
			report, _ := n.inspector(func(s *object.Settings) {
				*s = object.Settings{HostNamespaces: true, MassOrphaning: 100}
			}).Pass(t.Context(), nil)
			for _, o := range report.Objects {
				if o.Kind == object.Netns && (o.Verdict != test.want || o.Pod.UID != test.uid) {
					t.Errorf("%s of %q: %s", o.Verdict, o.Pod.UID, o.Why)
				}
			}
			if failed := len(report.Errors) > 0; failed != (test.want == object.Unknown) {
				t.Errorf("errors: %v", report.Errors)
			}
		})
	}
}
