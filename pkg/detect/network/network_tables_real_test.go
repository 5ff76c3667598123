package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/need"
)

// All namespaces share one neighbour table, so the test fills it from its own and reads it in the machine's files. In
// these milliseconds the kernel can refuse at most an address that the machine asks for.
func TestRealNeighbourTable(t *testing.T) {
	root := t.TempDir()
	var limit uint64
	for _, family := range []string{"ipv6", "ipv4"} { // only the machine's own namespace has these files
		const name = "neigh/default/gc_thresh3"
		var err error
		limit, err = checkkit.ReadCount(host.Files{}, "/proc/sys/net/"+family+"/"+name)
		need.Has(t, err == nil && limit <= 8192, "a gc_thresh3 of at most 8192")
		checktest.WriteFile(t, root, txtar.File{Name: "proc/sys/net/" + family + "/" + name,
			Data: strconv.AppendUint(nil, limit, 10)})
	}
	// /proc of this process may show the test's namespace.
	checktest.WriteFile(t, root, txtar.File{Name: "proc/net@", Data: []byte(fmt.Sprintf("/proc/%d/net", os.Getppid()))})
	n := newNetNode(t)
	n.host.Files = host.Files{Root: root}
	c := NeighbourTable()
	n.expect(c)
	n.veth()
	index := n.link("near").Attrs().Index
	refused := 0
	for i := range uint32(limit) + 64 {
		address := binary.BigEndian.AppendUint32(nil, 10<<24|9<<16|9<<8|3+i)
		err := netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_STALE, IP: net.IP(address),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		})
		if errors.Is(err, unix.ENOBUFS) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Fatal("the table takes more than its limit")
	}
	n.expect(c, [3]string{"neighbour-table/arp_cache", "warning", "NeighbourTableFull"})
	n.must(netlink.LinkDel(n.link("near"))) // takes its neighbours with it
	n.later += 10 * time.Minute
	n.expect(c)
	n.expect(c)
}

// The limit of tracked connections is shared by all namespaces, but connections are counted for each: the test fills
// its own. Its connections get no answer, so the kernel drops others to make room, and no packet.
func TestRealConntrack(t *testing.T) {
	limit, err := checkkit.ReadCount(host.Files{}, "/proc/sys/net/netfilter/nf_conntrack_max")
	need.Has(t, err == nil && limit <= 1<<19, "conntrack with an nf_conntrack_max of at most 524288")
	n, c := newNetNode(t), Conntrack()
	for _, rule := range [][]string{
		{"-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT"},
		{"-A", "INPUT", "-p", "udp", "-j", "DROP"}, // no connection shall be answered
	} {
		// A child of this thread is in its namespace.
		need.Kernel(t, "iptables with conntrack", exec.Command("iptables", rule...).Run())
	}
	// An unanswered packet is forgotten after 30 s, which is too short for a busy machine to send them all.
	n.must(os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("3600"), 0o600))
	n.expect(c)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	n.must(err)
	defer unix.Close(fd)
	send := func(most uint64) {
		for i := range most {
			to := &unix.SockaddrInet4{Port: int(i%60000) + 1, Addr: [4]byte{127, 0, 1, byte(i / 60000)}}
			if err := unix.Sendto(fd, []byte{0}, 0, to); err != nil && !errors.Is(err, unix.EPERM) {
				t.Fatal(err)
			}
		}
	}
	send(limit * 93 / 100)
	n.expect(c, [3]string{"node/lab", "warning", "ConntrackNearlyFull"})
	send(limit + 1000)
	n.expect(c, [3]string{"node/lab", "warning", "ConntrackFull"})
	n.must(netlink.ConntrackTableFlush(netlink.ConntrackTable))
	n.later += 10 * time.Minute
	n.expect(c)
}
