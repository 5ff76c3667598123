package netlink_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
)

// The watcher reports links of cards, and none created for pods. A card is a link without a kind; so is loopback, which
// every namespace has.
func TestWatchLinks(t *testing.T) {
	hosttest.PrivateNetwork(t)
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	calls := hosttest.WatchCalls(t, func(ctx context.Context, changed func()) error {
		thread.Spoil()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return hostnetlink.WatchLinks(ctx, changed)
	})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	do(err)
	up := false
	flip := func() {
		if up = !up; up {
			do(netlink.LinkSetUp(lo))
		} else {
			do(netlink.LinkSetDown(lo))
		}
	}
	hosttest.Until(t, calls, "loopback goes up and down", flip)
	for quiet := false; !quiet; { // messages still on their way
		select {
		case <-calls:
		case <-time.After(300 * time.Millisecond):
			quiet = true
		}
	}
	for range 50 {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
		do(netlink.LinkAdd(bridge))
		do(netlink.LinkAdd(veth))
		do(netlink.LinkSetMaster(veth, bridge))
		do(netlink.LinkSetUp(bridge))
		do(netlink.LinkSetUp(veth))
		do(netlink.LinkDel(veth))
		do(netlink.LinkDel(bridge))
	}
	select {
	case <-calls:
		t.Error("links that are created for pods are reported")
	case <-time.After(300 * time.Millisecond):
	}
	hosttest.Until(t, calls, "loopback again", flip)
}
