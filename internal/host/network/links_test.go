package network_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// Real veth pairs: to a pinned namespace, to another one, and with both ends here.
func TestVeths(t *testing.T) {
	hosttest.PrivateNetwork(t)
	dir := t.TempDir()
	pinned, linkless, gone := filepath.Join(dir, "cni-a"), filepath.Join(dir, "cni-b"), filepath.Join(dir, "cni-c")
	hosttest.PinNetns(t, pinned)
	hosttest.PinNetns(t, linkless)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	port := hosttest.Veth(t, "port", "eth0", pinned)
	hosttest.Veth(t, "here", "there", "")
	link, err := netlink.LinkByIndex(port)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		t.Fatal(err)
	}

	h := &host.Host{}
	veths, ids, err := network.Veths(h, []string{pinned, linkless, gone})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := ids[pinned]; !ok || len(ids) != 1 {
		t.Errorf("numbers of namespaces: %v", ids)
	}
	byName := make(map[string]network.Veth)
	for _, v := range veths {
		byName[v.Name] = v
	}
	if len(byName) != 3 {
		t.Fatalf("got %+v", veths)
	}
	p := byName["port"]
	want := network.Veth{
		Index: port, Name: "port", MAC: link.Attrs().HardwareAddr.String(), Master: bridge.Attrs().Index,
		MasterName: "cni0",
		PeerIndex:  p.PeerIndex, PeerNamespaceID: ids[pinned],
	}
	if diff := cmp.Diff(want, p); diff != "" || p.PeerIndex == 0 {
		t.Errorf("port: %s", diff)
	}
	if v := byName["here"]; v.PeerNamespaceID != -1 || v.PeerIndex != byName["there"].Index {
		t.Errorf("both ends here: %+v", v)
	}
}
