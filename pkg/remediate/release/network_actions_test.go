package release

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// objectsOf returns one object of each network kind of a pod.
func (w *world) objectsOf(uid string) map[object.Kind]object.Assessment {
	w.t.Helper()
	found := map[object.Kind]object.Assessment{}
	for _, o := range w.inspect().Objects {
		if o.Pod.UID == uid {
			found[o.Kind] = o
		}
	}
	return found
}

// Each number of an identity is compared with the current one; if one differs or is missing, the action does not run.
func TestNetworkActionsCompareIdentity(t *testing.T) {
	w := newNetworkWorld(t)
	dead := mutatetest.UID(t)
	w.attachPod(dead)
	before := w.networkCensus()
	objects := w.objectsOf(dead)
	tools := w.runner().tools
	for _, test := range []struct {
		kind    object.Kind
		change  func(*object.Identity)
		changed bool
	}{
		{object.CNIAttachment, func(i *object.Identity) { i.File.Inode = 7 }, true},
		{object.CNIAttachment, func(i *object.Identity) { i.File.Size = 7 }, true},
		{object.CNIAttachment, func(i *object.Identity) { i.File.Inode = 0 }, false},
		{object.CNIAttachment, func(i *object.Identity) { i.File.Size = 0 }, false},
		{object.CNIAttachment, func(i *object.Identity) { i.File.Device = "" }, false},
		{object.Netns, func(i *object.Identity) { i.File.Inode = 7 }, true},
		{object.Netns, func(i *object.Identity) { i.File.Inode = 0 }, false},
		{object.Link, func(i *object.Identity) { i.Link.PeerIndex = 77 }, true},
		{object.Link, func(i *object.Identity) { i.Link.PeerNamespace = 77 }, true},
		{object.Link, func(i *object.Identity) { i.Link.Index = 0 }, false},
		{object.Link, func(i *object.Identity) { i.Link.PeerIndex = 0 }, false},
		{object.Link, func(i *object.Identity) { i.Link.Index = 1 }, false},
		{object.Link, func(i *object.Identity) { *i = object.Identity{} }, false},
	} {
		action, _ := actions.All().On(test.kind)
		o, ok := objects[test.kind]
		if !ok {
			t.Fatalf("no %s", test.kind)
		}
		test.change(&o.Identity)
		if err := action.Do(t.Context(), tools, o); err == nil || errors.Is(err, mutate.ErrChanged) != test.changed {
			t.Errorf("%s with %v: %v", test.kind, o.Identity.Values(), err)
		}
	}
	if diff := cmp.Diff(before, w.networkCensus()); diff != "" {
		t.Error(diff)
	}
	link, _ := actions.All().On(object.Link)
	if gone, err := link.Verify(t.Context(), tools, objects[object.Link]); gone || err != nil {
		t.Errorf("link: gone %v, %v", gone, err)
	}
	if err := link.Do(t.Context(), tools, objects[object.Link]); err != nil {
		t.Error(err)
	}
	if gone, err := link.Verify(t.Context(), tools, objects[object.Link]); !gone || err != nil {
		t.Errorf("link: gone %v, %v", gone, err)
	}
}

// "Gone" is verified on the object itself.
func TestNetworkGone(t *testing.T) {
	w := newNetworkWorld(t)
	dead := mutatetest.UID(t)
	netns, attached := w.attachPod(dead)
	objects, tools := w.objectsOf(dead), w.runner().tools
	gone := func(kind object.Kind) (bool, error) {
		action, _ := actions.All().On(kind)
		return action.Verify(t.Context(), tools, objects[kind])
	}
	for _, kind := range []object.Kind{object.CNIAttachment, object.Netns, object.Link} {
		if is, err := gone(kind); is || err != nil {
			t.Errorf("%s: gone %v, %v", kind, is, err)
		}
	}
	if err := os.Remove(attached.File); err != nil {
		t.Fatal(err)
	}
	if is, err := gone(object.CNIAttachment); is || err == nil || !strings.Contains(err.Error(), "still held") {
		t.Errorf("an address is held: gone %v, %v", is, err)
	}
	addresses, _ := filepath.Glob(filepath.Join(w.Host.Paths.CNINetworksDir, attached.Network, "10.*"))
	for _, name := range addresses {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := gone(object.CNIAttachment); !is || err != nil {
		t.Errorf("the address is free: gone %v, %v", is, err)
	}
	if err := unix.Unmount(netns, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	if is, err := gone(object.Netns); is || err != nil {
		t.Errorf("the file is there: gone %v, %v", is, err)
	}
	if err := os.Remove(netns); err != nil {
		t.Fatal(err)
	}
	if is, err := gone(object.Netns); !is || err != nil {
		t.Errorf("nothing is there: gone %v, %v", is, err)
	}
	action, _ := actions.All().On(object.Lease)
	lease := object.Assessment{Object: object.Object{Kind: object.Lease, ID: "x",
		Identity: object.Identity{Runtime: object.RuntimeID{ID: "x"}}}}
	for name, test := range map[string]struct {
		leases func(context.Context) ([]leases.Lease, error)
		gone   bool
		fails  bool
	}{
		"there":          {hosttest.Answer([]leases.Lease{{ID: "y"}, {ID: "x"}}, nil), false, false},
		"not there":      {hosttest.Answer([]leases.Lease{{ID: "y"}}, nil), true, false},
		"nobody can say": {hosttest.Answer([]leases.Lease(nil), errors.New("away")), false, true},
		"no containerd":  {nil, false, true},
	} {
		tools.Host = &host.Host{Containerd: host.Containerd{Leases: test.leases}}
		if is, err := action.Verify(t.Context(), tools, lease); is != test.gone || (err != nil) != test.fails {
			t.Errorf("lease %s: gone %v, %v", name, is, err)
		}
	}
}

// A namespace that is also mounted elsewhere on the host stays, and the plan says so.
func TestNetnsMountedElsewhereIsRefused(t *testing.T) {
	w := newNetworkWorld(t)
	dead := mutatetest.UID(t)
	netns, _ := w.attachPod(dead)
	copied := w.Write(filepath.Join(w.Dir, "copy"), "")
	if err := unix.Mount(netns, copied, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	outcome := w.release()
	for _, step := range outcome.Pods[0].Steps {
		if step.Kind == object.Netns && (step.Result != Refused || !strings.Contains(step.Blocked, copied)) {
			t.Errorf("%s: %s", step.Result, step.Blocked)
		}
	}
	if outcome.Pods[0].Result == Released || len(w.Mounts(netns)) != 1 || len(w.Mounts(copied)) != 1 {
		t.Error(describe(outcome))
	}
}

// The agent is killed right after CNI DEL. Its saved state names the namespace's owner; the next release removes it.
func TestCrashAfterDEL(t *testing.T) {
	w := newNetworkWorld(t)
	before := w.networkCensus()
	w.attachPod(mutatetest.UID(t))
	crash := errors.New("crash")
	w.faultPoint = func(point string) error {
		if point == "done: "+string(object.CNIAttachment) {
			return crash
		}
		return nil
	}
	if _, err := w.runner().Release(t.Context(), w.inspect()); !errors.Is(err, crash) {
		t.Fatal(err)
	}
	w.faultPoint = nil
	outcome := w.release()
	if diff := cmp.Diff(before, w.networkCensus()); diff != "" {
		t.Error(diff, describe(outcome))
	}
}
