package packetfilter

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/need"
)

// filterBench is a node with a pod behind cali0 and the outside behind its uplink, in both families.
type filterBench struct {
	pod, other string // network namespaces
	host       *host.Host
	check      detect.Check
	primary    string // family of the node
}

func newFilterBench(t *testing.T) *filterBench {
	t.Helper()
	dir := t.TempDir()
	b := &filterBench{pod: filepath.Join(dir, "pod"), other: filepath.Join(dir, "other"), check: New()}
	hosttest.Attach(t, b.pod, "cali0", "10.244.0.1/24", "10.244.0.2/24")
	hosttest.Addresses(t, b.pod, "cali0", "fd00:244::1/64", "fd00:244::2/64")
	hosttest.Attach(t, b.other, "uplink", "192.0.2.1/24", "192.0.2.2/24")
	hosttest.Addresses(t, b.other, "uplink", "2001:db8:2::1/64", "2001:db8:2::2/64")
	for _, name := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		need.Kernel(t, "forwarding", os.WriteFile(name, []byte("1"), 0o600))
	}
	for _, address := range []string{"10.244.0.2:80", "[fd00:244::2]:80"} {
		listen(t, b.pod, address)
	}
	for _, address := range []string{"192.0.2.2:80", "[2001:db8:2::2]:80"} {
		listen(t, b.other, address)
	}
	for _, family := range []string{ipv4, ipv6} {
		for range 50 { // until the links have a carrier
			if out, in := b.connects(family); out && in {
				break
			}
		}
	}
	real := &host.Host{Network: host.NewNetwork()}
	mountSysfs(t, dir)
	b.host = &host.Host{NodeName: "node-a", Paths: discover.DefaultPaths(), Clock: host.Now,
		Files: host.Files{Root: dir}, Network: real.Network}
	b.host.Network.PacketFilter = func() (packetfilter.PacketFilter, error) { return network.ReadPacketFilter(real) }
	b.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) {
		return []corev1.Pod{{Status: corev1.PodStatus{
			HostIP: map[string]string{ipv4: "192.0.2.1", ipv6: "2001:db8:2::1"}[b.primary],
			PodIPs: []corev1.PodIP{{IP: "10.244.0.2"}, {IP: "fd00:244::2"}},
		}}}, nil
	}
	checktest.WriteHostFile(t, host.Files{Root: dir}, "var/lib/kubelet/config.yaml",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS: [10.96.0.10, "+
			"fd00:96::10]\n")
	return b
}

// mountSysfs mounts a /sys of this network namespace below root until the test ends.
func mountSysfs(t testing.TB, root string) {
	t.Helper()
	point := filepath.Join(root, "sys")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("nodeagent-test", point, "sysfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("mount sysfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// connects reports whether a pod reaches the outside, and the outside the pod.
func (b *filterBench) connects(family string) (out, in bool) {
	if family == ipv6 {
		return connects(b.pod, "[2001:db8:2::2]:80"), connects(b.other, "[fd00:244::2]:80")
	}
	return connects(b.pod, "192.0.2.2:80"), connects(b.other, "10.244.0.2:80")
}

// evaluate compares the fate of a packet with the findings of the check.
func (b *filterBench) evaluate(t *testing.T, family, name string, out, in bool, want []string) {
	t.Helper()
	b.primary = family
	gotOut, gotIn := b.connects(family)
	for tries := 0; tries < 100 && (out && !gotOut || in && !gotIn); tries++ { // a busy machine takes longer
		gotOut, gotIn = b.connects(family)
	}
	if gotOut != out {
		t.Errorf("%s: a pod really reaches the outside: %t, want %t", name, gotOut, out)
	}
	if gotIn != in {
		t.Errorf("%s: the outside really reaches a pod: %t, want %t", name, gotIn, in)
	}
	found, err := b.check.Run(t.Context(), b.host)
	if diff := cmp.Diff(want, checktest.Reasons(found), cmpopts.EquateEmpty(),
		cmpopts.SortSlices(strings.Compare)); diff != "" || err != nil {
		t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
	}
	for _, f := range found {
		t.Log(name+":", f.Message)
	}
}

func flush(t *testing.T, family string) {
	t.Helper()
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		tables(family)(t, "nft", "-P", chain, "ACCEPT")
	}
	tables(family)(t, "nft", "-F")
	tables(family)(t, "nft", "-X")
	tables(family)(t, "nft", "-t", "raw", "-F")
}

// listen accepts connections in a network namespace until the test ends.
func listen(t *testing.T, netns, address string) {
	t.Helper()
	var listener net.Listener
	err := hosttest.InNetns(netns, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
}

// connects reports whether a connection can be made from a network namespace. (The socket is made on the calling
// thread.)
func connects(netns, address string) bool {
	return hosttest.InNetns(netns, func() error {
		conn, err := net.DialTimeout("tcp", address, 150*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	}) == nil
}
