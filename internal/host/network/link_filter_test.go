package network

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/test/need"
)

// What is made for pods does not even reach the socket.
func TestLinkFilter(t *testing.T) {
	need.Root(t, "makes a network namespace")
	thread.Spoil()
	need.Kernel(t, "network namespaces", unix.Unshare(unix.CLONE_NEWNET))
	fd, err := hostnetlink.OpenLinkSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// families and kinds of what the socket is told of.
	told := func() (seen map[string]bool) {
		seen = map[string]bool{}
		for buffer := make([]byte, 32<<10); ; {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				return seen
			}
			kind := ""
			hostnetlink.Attributes(buffer[unix.NLMSG_HDRLEN+hostnetlink.IfinfoSize:n], func(k uint16, value []byte) {
				if k == unix.IFLA_LINKINFO {
					hostnetlink.Attributes(value, func(k uint16, value []byte) {
						if k == unix.IFLA_INFO_KIND {
							kind = unix.ByteSliceToString(value)
						}
					})
				}
			})
			seen[fmt.Sprintf("family %d kind %q", buffer[unix.NLMSG_HDRLEN], kind)] = true
		}
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a", MasterIndex: bridge.Index}, PeerName: "b"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{`family 0 kind "bridge"`: true}, told()); diff != "" {
		t.Error(diff)
	}
}
