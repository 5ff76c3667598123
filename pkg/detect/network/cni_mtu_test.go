package network

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestNetworkForReal: an uplink, a pod, a bridge and an overlay, all real devices of the kernel.
func TestNetworkForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	dir := t.TempDir()
	hosttest.Attach(t, filepath.Join(dir, "router"), "uplink", "10.244.3.2/16", "10.244.3.1/16")
	hosttest.Attach(t, filepath.Join(dir, "pod"), "cali0", "10.99.0.1/24", "10.99.0.2/24")
	uplink := device(t, "uplink")
	route := &netlink.Route{Gw: []byte{10, 244, 3, 1}}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	overlay := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1", MTU: 1450}, VxlanId: 1,
		VtepDevIndex: uplink.Attrs().Index, Port: 8472}
	need.Kernel(t, "vxlan", netlink.LinkAdd(overlay))
	for _, link := range []netlink.Link{overlay, uplink} {
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	h := &host.Host{NodeName: "node-a", Paths: discover.DefaultPaths(), Clock: host.Now}
	see := func(name string, want ...string) {
		t.Helper()
		found, err := CNIMTU().Run(t.Context(), h)
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
		for _, f := range found {
			t.Log(name+":", f.Message)
		}
	}
	see("as made")
	setMTU(t, "uplink", 1400)
	see("the uplink became smaller", "network-device/uplink=PodMTUTooLarge warning",
		"network-device/flannel.1=OverlayMTUTooLarge warning")
	setMTU(t, "cali0", 1400)
	see("pods follow", "network-device/flannel.1=OverlayMTUTooLarge warning")
	setMTU(t, "flannel.1", 1350)
	see("the overlay too")
	setMTU(t, "uplink", 9000)
	see("a large uplink")
	if err := netlink.RouteDel(route); err != nil {
		t.Fatal(err)
	}
	if _, err := CNIMTU().Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("without default route: %v, want not applicable", err)
	}
}

func device(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func setMTU(t *testing.T, name string, mtu int) {
	t.Helper()
	if err := netlink.LinkSetMTU(device(t, name), mtu); err != nil {
		t.Fatal(err)
	}
}
