package remediate

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/hand/handtest"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/need"
)

// networkCensus is all that pods have of the network, asked of the kernel and the files themselves: mounts and files in the
// directory of the pins, links, addresses that host-local gave, libcni's cache, and rules of the packet filter. Bridges are
// left out: a plugin makes one with the first attachment and never removes it.
func (w *world) networkCensus() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	mounts, err := w.Host.MountsOf(os.Getpid())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range mounts {
		if host.Below(m.Point, w.Dir) {
			all[fmt.Sprintf("mount %d", m.ID)] = m.Point + " " + m.Root
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, link := range links {
		if link.Type() != "bridge" {
			at := link.Attrs()
			all[fmt.Sprintf("link %d", at.Index)] = fmt.Sprintf("%s %s, peer %d in %d", link.Type(), at.Name, at.ParentIndex, at.NetNsID)
		}
	}
	for _, dir := range []string{"netns", "cni/results", "cni/networks"} {
		err := filepath.WalkDir(filepath.Join(w.Dir, dir), func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && entry.Name() != "lock" && !strings.HasPrefix(entry.Name(), "last_reserved") {
				all["file "+name] = ""
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			w.t.Fatal(err)
		}
	}
	rules, err := exec.Command("/usr/sbin/iptables", "-w", "-t", "nat", "-S").Output()
	need.Kernel(w.t, "iptables", err)
	for rule := range strings.Lines(string(rules)) {
		all["rule "+rule] = ""
	}
	return all
}

// attachPod gives a pod a network namespace and a real attachment, and returns the pin.
func (w *world) attachPod(uid string) (pin string, attached handtest.Attached) {
	w.t.Helper()
	pin = w.Pin(filepath.Join(w.Dir, "netns", "cni-"+handtest.UID(w.t))).Path
	return pin, w.Attach(uid, pin)
}

// newNetworkWorld is a world in a network of its own, with the network of a living pod in it.
func newNetworkWorld(t *testing.T) *world {
	t.Helper()
	hosttest.PrivateNetwork(t)
	w := newWorld(t)
	w.attachPod(w.living)
	return w
}

func results(outcome Outcome) map[inspect.Kind][]Result {
	all := map[inspect.Kind][]Result{}
	for _, pod := range outcome.Pods {
		for _, step := range pod.Steps {
			all[step.Kind] = append(all[step.Kind], step.Result)
		}
	}
	return all
}

// CNI DEL takes away the file that tells whose the pin is. The pin must go all the same, and the node must be as it was before
// the pod came.
func TestReleaseEndsTheNetwork(t *testing.T) {
	w := newNetworkWorld(t)
	before := w.networkCensus()
	dead := handtest.UID(t)
	w.attachPod(dead)
	outcome := w.release()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Error(describe(outcome))
	}
	want := map[inspect.Kind][]Result{inspect.CNIAttachment: {Released}, inspect.Netns: {Released}, inspect.Link: {Vanished}}
	if diff := cmp.Diff(want, results(outcome)); diff != "" {
		t.Error(diff, describe(outcome))
	}
	if diff := cmp.Diff(before, w.networkCensus()); diff != "" {
		t.Errorf("the node is not as it was: %s", diff)
	}
	for _, o := range w.inspect().Objects {
		if o.Verdict != inspect.Live && o.Verdict != inspect.Foreign {
			t.Errorf("%s %s is %s: %s", o.Kind, o.ID, o.Verdict, o.Why)
		}
	}
}
