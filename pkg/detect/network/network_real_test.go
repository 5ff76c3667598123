package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// netNode runs checks in a network namespace that belongs to the test alone. The test sets the time.
type netNode struct {
	t     *testing.T
	host  *host.Host
	later time.Duration
}

func newNetNode(t *testing.T) *netNode {
	t.Helper()
	n := &netNode{t: t}
	n.host = &host.Host{NodeName: "lab", Files: privateNetworkFiles(t), Network: host.NewNetwork(),
		Clock: func() finding.Timestamp {
			return finding.Timestamp{Wall: time.Unix(0, 0), Boot: "lab", SinceBoot: time.Hour + n.later}
		}}
	n.must(netlink.LinkSetUp(n.link("lo")))
	return n
}

// privateNetworkFiles is hosttest.PrivateNetwork with the files of that namespace: /proc/net, /proc/sys and a private
// /sys. They are correct on this goroutine only, whose thread has the namespace.
func privateNetworkFiles(t testing.TB) host.Files {
	t.Helper()
	root := t.TempDir()
	hosttest.PrivateNetwork(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	must(os.Mkdir(filepath.Join(root, "sys"), 0o755))
	// /proc/net is the process's, not the thread's.
	must(os.Symlink("/proc/thread-self/net", filepath.Join(root, "proc/net")))
	must(os.Symlink("/proc/sys", filepath.Join(root, "proc/sys")))
	must(unix.Mount("nodeagent-test", filepath.Join(root, "sys"), "sysfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { must(unix.Unmount(filepath.Join(root, "sys"), unix.MNT_DETACH)) })
	return host.Files{Root: root}
}

func (n *netNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *netNode) link(name string) netlink.Link {
	n.t.Helper()
	link, err := netlink.LinkByName(name)
	n.must(err)
	return link
}

// expect fails unless the next run of a check, a minute later, finds exactly these: subject, severity, reason.
func (n *netNode) expect(c detect.Check, want ...[3]string) []finding.Finding {
	n.t.Helper()
	n.later += time.Minute
	findings, err := c.Run(n.t.Context(), n.host)
	if _, none := errors.AsType[*finding.NotApplicableError](err); err != nil && !none {
		n.t.Fatal(err)
	}
	var got [][3]string
	for _, f := range findings {
		got = append(got, [3]string{f.Subject.String(), string(f.Severity), f.Reason})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("%s (-want +got):\n%s%+v", c.ID, diff, findings)
	}
	return findings
}

// veth adds a pair with addresses 10.9.9.1/24 and .2, in one namespace, and switches it on.
func (n *netNode) veth() {
	n.t.Helper()
	n.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}))
	for i, name := range []string{"near", "far"} {
		address, err := netlink.ParseAddr(fmt.Sprintf("10.9.9.%d/24", i+1))
		n.must(err)
		n.must(netlink.AddrAdd(n.link(name), address))
		n.must(netlink.LinkSetUp(n.link(name)))
	}
}

func TestRealLinksOfPods(t *testing.T) {
	n := newNetNode(t)
	checks := []detect.Check{LinkState(DefaultLinkStateSettings(), nil), NetworkErrors(), Bonds()}
	all := func() {
		t.Helper()
		for _, c := range checks {
			n.expect(c)
		}
	}
	all()
	n.veth()
	n.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}))
	n.must(netlink.LinkSetUp(n.link("cni0")))
	n.must(netlink.LinkSetMaster(n.link("near"), n.link("cni0")))
	all()
	n.must(netlink.LinkSetDown(n.link("far"))) // the near end and the bridge have no carrier now
	all()
}

func TestRealLoopback(t *testing.T) {
	n, c := newNetNode(t), Loopback()
	n.expect(c)
	n.must(netlink.LinkSetDown(n.link("lo")))
	n.expect(c, [3]string{"network-device/lo", "fatal", "LoopbackDown"})
	n.must(netlink.LinkSetUp(n.link("lo")))
	n.expect(c)
	address, err := netlink.ParseAddr("127.0.0.1/8")
	n.must(err)
	n.must(netlink.AddrDel(n.link("lo"), address))
	n.expect(c, [3]string{"network-device/lo", "fatal", "LoopbackWithoutAddress"})
	n.must(netlink.AddrAdd(n.link("lo"), address))
	n.expect(c)
}

func TestRealDefaultRoute(t *testing.T) {
	n, c := newNetNode(t), DefaultRoute(nil)
	n.expect(c, [3]string{"node/lab", "info", "DefaultRouteMissing"})
	n.veth()
	to := func(destination string) *netlink.Route {
		network, err := netlink.ParseIPNet(destination)
		n.must(err)
		return &netlink.Route{LinkIndex: n.link("near").Attrs().Index, Dst: network}
	}
	n.must(netlink.RouteAdd(to("0.0.0.0/0")))
	n.expect(c)
	n.must(netlink.RouteDel(to("0.0.0.0/0")))
	n.expect(c, [3]string{"node/lab", "fatal", "DefaultRouteLost"})
	n.must(netlink.RouteAdd(to("0.0.0.0/1")))
	n.must(netlink.RouteAdd(to("128.0.0.0/1")))
	n.expect(c) // another way out
	n.must(netlink.RouteDel(to("128.0.0.0/1")))
	n.expect(c, [3]string{"node/lab", "fatal", "DefaultRouteLost"})
	n.must(netlink.RouteAdd(to("0.0.0.0/0")))
	n.expect(c)
	n.must(netlink.LinkSetDown(n.link("near"))) // takes its routes with it
	n.expect(c, [3]string{"node/lab", "fatal", "DefaultRouteLost"})
}

// Two ends of a cable with the same address.
func TestRealDuplicateAddress(t *testing.T) {
	n, c := newNetNode(t), DuplicateAddress()
	n.veth()
	n.expect(c)
	address, err := netlink.ParseAddr("fd00:9::9/64")
	n.must(err)
	address.Flags = unix.IFA_F_NODAD // the far end does not check
	n.must(netlink.AddrAdd(n.link("far"), address))
	address.Flags = 0
	n.must(netlink.AddrAdd(n.link("near"), address))
	deadline := time.After(time.Minute)
	for found := false; !found; { // the kernel asks for a second or two
		findings, err := c.Run(t.Context(), n.host)
		n.must(err)
		found = len(findings) > 0
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("the duplicate is not found")
		}
	}
	n.expect(c, [3]string{"network-device/near", "warning", "DuplicateAddress"})
	n.must(netlink.AddrDel(n.link("near"), address))
	n.expect(c)
}
