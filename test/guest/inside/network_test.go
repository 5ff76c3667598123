package inside

import (
	"os"
	"path/filepath"
	"testing"
)

// uplink loads the driver of the guest's network card and returns its name.
func uplink(t *testing.T) string {
	t.Helper()
	run(t, "modprobe", "e1000")
	found, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil || len(found) != 1 {
		t.Fatalf("network cards: %q, %v", found, err)
	}
	return filepath.Base(filepath.Dir(found[0]))
}

// TestLinkDown: the cable of a real network card is pulled and put back, while links of pods come and go.
func TestLinkDown(t *testing.T) {
	needGuest(t)
	card := uplink(t)
	run(t, "ip", "link", "set", card, "up")
	t.Cleanup(func() { run(t, "ip", "link", "set", card, "down") })
	eventually(t, "a carrier", func() bool { return read("/sys/class/net/"+card+"/operstate") == "up" })
	a := watch(t, "")
	run(t, "modprobe", "veth")
	run(t, "ip", "link", "add", "pod0", "type", "veth", "peer", "name", "pod1")
	run(t, "ip", "link", "set", "pod0", "up") // without its peer it has no carrier
	t.Cleanup(func() { run(t, "ip", "link", "del", "pod0") })
	wish(t, "set_link nic0 off")
	a.awaitReason("link-state", "", card, true)
	wish(t, "set_link nic0 on")
	a.awaitReason("link-state", "", card, false)
	for _, f := range a.status().Findings {
		if f.Subject.Name == "pod0" || f.Subject.Name == "pod1" {
			t.Errorf("a pod's link is no uplink: %+v", f)
		}
	}
	if _, err := os.Stat("/sys/class/net/" + card); err != nil {
		t.Error(err)
	}
}
