package mutate_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

// firewalled returns a node with a network whose plugins accept each pod's address in the packet filter. add makes a
// pod, and accepted counts the rules for the first address.
func firewalled(t *testing.T) (n *mutatetest.Node, network string, add func() (mutate.Attachment, mutate.Netns),
	accepted func() int) {
	t.Helper()
	need.Program(t, "/usr/lib/cni/firewall")
	n, network = mutatetest.New(t), "nab"+mutatetest.Hex(t, 8)
	t.Cleanup(func() { _ = exec.Command("/sbin/ip", "link", "del", network).Run() })
	conf := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"%[1]s","plugins":[
		{"type":"bridge","bridge":"%[1]s","isGateway":true,"ipam":{"type":"host-local","dataDir":"%[2]s","subnet":"10.205.7.0/28"}},
		{"type":"firewall","backend":"iptables"}]}`, network, n.Host.Paths.CNINetworksDir)
	add = func() (mutate.Attachment, mutate.Netns) {
		netns := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
		made := mutatetest.Attached{Network: network, ContainerID: mutatetest.Hex(t, 64)}
		n.Add(&made, conf, mutatetest.UID(t), netns.Path)
		return attachment(t, n, network, made.ContainerID), netns
	}
	accepted = func() int {
		out, err := exec.Command("/usr/sbin/iptables", "-w", "-S", "CNI-FORWARD").Output()
		need.Kernel(t, "iptables", err)
		return strings.Count(string(out), "10.205.7.2/32")
	}
	return n, network, add, accepted
}

// A namespace that is gone removes no rule of the host: the plugins do, and they need the cached result for that.
func TestDelAttachmentWithoutNetns(t *testing.T) {
	n, network, add, accepted := firewalled(t)
	dead, its := add()
	if accepted() == 0 {
		t.Fatal("the pod has no rules: this test shows nothing")
	}
	if err := errors.Join(n.Mutator.RemoveNetns(t.Context(), its),
		n.Mutator.DelAttachment(t.Context(), dead)); err != nil {
		t.Fatal(err)
	}
	if rules := accepted(); rules != 0 {
		t.Errorf("the packet filter has %d rules for the pod", rules)
	}
	held, err := n.Mutator.LeasesHeld(filepath.Join(n.Host.Paths.CNINetworksDir, network), dead.ContainerID, "eth0")
	if err != nil || len(held) > 0 {
		t.Errorf("held: %q, %v", held, err)
	}
}

// Some plugins undo their changes by the address alone: firewall its rules, others their routes. If host-local keeps
// its records in memory, a boot removes them but not libcni's: by now the address is another pod's.
func TestDelAttachmentOfReusedAddress(t *testing.T) {
	n, network, add, accepted := firewalled(t)
	dead, its := add()
	if err := n.Mutator.RemoveNetns(t.Context(), its); err != nil { // as a boot does
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(n.Host.Paths.CNINetworksDir, network)); err != nil {
		t.Fatal(err)
	}
	living, netns := add()
	rules := accepted()
	if rules == 0 {
		t.Fatal("the new pod has another address, or no rules: this test shows nothing")
	}
	var refusal mutate.Refusal
	if err := n.Mutator.DelAttachment(t.Context(), dead); !errors.As(err, &refusal) ||
		!strings.Contains(refusal.Why, netns.Path) {
		t.Errorf("got %v, want a refusal that names %s", err, netns.Path)
	}
	if now := accepted(); now != rules {
		t.Errorf("the packet filter has %d rules for the living pod instead of %d", now, rules)
	}
	if err := n.Mutator.DelAttachment(t.Context(), living); err != nil { // it has its own address
		t.Fatal(err)
	}
	if err := n.Mutator.RemoveNetns(t.Context(), netns); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.DelAttachment(t.Context(), dead); err != nil {
		t.Errorf("when the other pod is gone: %v", err)
	}
}
