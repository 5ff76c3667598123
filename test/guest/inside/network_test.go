package inside

import (
	"path/filepath"
	"testing"
)

// card loads the driver of the guest's network cards and returns the name of one.
func card(t *testing.T, mac string) string {
	t.Helper()
	run(t, "modprobe", "e1000")
	found, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range found {
		if dir := filepath.Dir(device); read(dir+"/address") == mac {
			return filepath.Base(dir)
		}
	}
	t.Fatalf("no card %s: %q", mac, found)
	return ""
}

// TestLinkDown: the cable of a real network card is unplugged and plugged in again, while links of pods come and go.
func TestLinkDown(t *testing.T) {
	a := watch(t)
	card := card(t, "52:54:00:00:00:01")
	run(t, "ip", "link", "set", card, "up")
	eventually(t, "a carrier", func() bool { return read("/sys/class/net/"+card+"/operstate") == "up" })
	run(t, "modprobe", "veth")
	run(t, "ip", "link", "add", "pod0", "type", "veth", "peer", "name", "pod1")
	run(t, "ip", "link", "set", "pod0", "up") // without its peer it has no carrier
	monitor(t, "set_link nic0 off")
	a.awaitReason("link-state", "LinkDown", card, true)
	monitor(t, "set_link nic0 on")
	a.awaitReason("link-state", "", card, false)
	for _, f := range a.status().Findings {
		if f.Subject.Name == "pod0" || f.Subject.Name == "pod1" {
			t.Errorf("a pod's link is no uplink: %+v", f)
		}
	}
}

// TestBondLosesALeg: a member of a bond loses its link, and gets it back.
func TestBondLosesALeg(t *testing.T) {
	a := watch(t)
	card := card(t, "52:54:00:00:00:02")
	run(t, "modprobe", "bonding", "max_bonds=0")
	run(t, "modprobe", "dummy", "numdummies=0")
	run(t, "ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "100")
	run(t, "ip", "link", "add", "leg1", "type", "dummy")
	for _, leg := range []string{card, "leg1"} {
		run(t, "ip", "link", "set", leg, "master", "bond0")
		run(t, "ip", "link", "set", leg, "up")
	}
	run(t, "ip", "link", "set", "bond0", "up")
	eventually(t, "a carrier", func() bool { return read("/sys/class/net/"+card+"/bonding_slave/mii_status") == "up" })
	monitor(t, "set_link nic1 off")
	a.awaitReason("bonds", "BondDegraded", "bond0", true)
	monitor(t, "set_link nic1 on")
	a.awaitReason("bonds", "", "bond0", false)
}
