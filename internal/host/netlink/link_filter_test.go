package netlink

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/test/need"
)

// Messages about links of pods do not even reach the socket.
func TestLinkFilter(t *testing.T) {
	need.Root(t, "makes a network namespace")
	thread.Spoil()
	need.Kernel(t, "network namespaces", unix.Unshare(unix.CLONE_NEWNET))
	fd, err := openLinkSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// families and kinds of the links in the socket's messages
	received := func() map[string]bool {
		links := map[string]bool{}
		for buffer := make([]byte, 32<<10); ; {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				return links
			}
			messages, err := syscall.ParseNetlinkMessage(buffer[:n])
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				link, err := netlink.LinkDeserialize((*unix.NlMsghdr)(&m.Header), m.Data)
				if err != nil {
					t.Fatal(err)
				}
				links[fmt.Sprintf("family %d kind %q", m.Data[0], link.Type())] = true
			}
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
	if diff := cmp.Diff(map[string]bool{`family 0 kind "bridge"`: true}, received()); diff != "" {
		t.Error(diff)
	}
}
