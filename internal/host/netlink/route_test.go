package netlink_test

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func TestRouteDevice(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	netns := filepath.Join(t.TempDir(), "pod")
	hosttest.Attach(t, netns, "cali0", "10.244.0.1/24", "10.244.0.2/24")
	hosttest.Addresses(t, netns, "cali0", "fd00:244::1/64", "fd00:244::2/64")
	device := host.NewNetwork().RouteDevice
	for address, want := range map[string]string{"127.0.0.1": "lo", "10.244.0.2": "cali0", "10.244.0.1": "lo",
		"fd00:244::2": "cali0"} {
		if got, err := device(netip.MustParseAddr(address)); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", address, got, err, want)
		}
	}
	for _, address := range []string{"192.0.2.1", "2001:db8::"} {
		if got, err := device(netip.MustParseAddr(address)); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: %q, %v, want that there is no way", address, got, err)
		}
	}
}
