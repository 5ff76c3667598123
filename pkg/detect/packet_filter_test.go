package detect

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// ruleSet is what somebody makes of the packet filter, and what must come of it: whether a pod's connections really pass,
// and what the check says.
type ruleSet struct {
	name  string
	rules string // lines of iptables; a line may begin with "legacy:"
	out   bool   // a pod reaches the outside
	in    bool   // the outside reaches a pod
	want  []string
}

const kubeRules = `-N KUBE-FORWARD
-A FORWARD -m comment --comment kubernetes -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
`

const dockerRules = `-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-N DOCKER-ISOLATION-STAGE-1
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-USER -j RETURN
`

const flannelRules = `-N FLANNEL-FWD
-A FORWARD -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT
`

func ruleSets() []ruleSet {
	const forward = "packet-filter/nft ip filter FORWARD=PodTrafficDropped warning"
	return []ruleSet{
		{name: "nothing", out: true, in: true},
		{name: "kube-proxy", rules: kubeRules, out: true, in: true},
		{name: "Docker leaves a policy, nobody opens it", rules: dockerRules + kubeRules, want: []string{forward}},
		{name: "flannel opens it", rules: dockerRules + kubeRules + flannelRules, out: true, in: true},
		{name: "iptables-services before flannel", rules: kubeRules + "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n" + flannelRules, want: []string{forward}},
		{name: "iptables-services behind flannel", rules: kubeRules + flannelRules + "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n", out: true, in: true},
		{name: "only out is opened", rules: "-P FORWARD DROP\n-A FORWARD -m state --state ESTABLISHED -j ACCEPT\n-A FORWARD -s 10.244.0.0/16 -j ACCEPT\n", out: true}, // other pods reach it
		{name: "a pod is dropped by its address", rules: "-N rogue\n-I FORWARD -j rogue\n-A rogue -s 10.244.0.0/24 -j DROP\n", in: false,
			want: []string{"packet-filter/nft ip filter rogue=PodTrafficDropped warning"}},
		{name: "another address is dropped", rules: "-I FORWARD -s 10.9.0.0/16 -j DROP\n-I FORWARD -p udp -j DROP\n-I FORWARD -i docker0 -j DROP\n", out: true, in: true},
		{name: "calico accepts by mark", rules: "-N cali-FORWARD\n-P FORWARD DROP\n-A FORWARD -j cali-FORWARD\n" +
			"-A cali-FORWARD -i cali+ -j MARK --set-xmark 0x10000/0x10000\n-A cali-FORWARD -o cali+ -j MARK --set-xmark 0x10000/0x10000\n" +
			"-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT\n-A FORWARD -m state --state ESTABLISHED -j ACCEPT\n", out: true, in: true},
		{name: "the other backend drops", rules: kubeRules + flannelRules + "legacy:-A FORWARD -j DROP\n", want: []string{"packet-filter/legacy ip filter FORWARD=PodTrafficDropped warning"}},
		{name: "both backends", rules: kubeRules + strings.ReplaceAll("\n"+kubeRules, "\n-", "\nlegacy:-")[1:], out: true, in: true,
			want: []string{"packet-filter/backends=IptablesBackendsMixed warning"}},
		{name: "raw drops questions", rules: "-t raw -A PREROUTING -p udp --dport 53 -j DROP\n", out: true, in: true,
			want: []string{"packet-filter/nft ip raw PREROUTING=ServiceTrafficDropped warning"}},
		{name: "kubelet's port", rules: "-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp --dport 22 -j ACCEPT\n-A INPUT -j REJECT\n", out: true, in: true,
			want: []string{"packet-filter/nft ip filter INPUT=KubeletPortDropped warning"}},
		{name: "kubelet's port is open for some", rules: "-A INPUT -p tcp --dport 22 -j ACCEPT\n-A INPUT -s 192.0.2.0/24 -j ACCEPT\n-A INPUT -j REJECT\n", out: true, in: true},
		{name: "kubelet's port is open", rules: "-P INPUT DROP\n-A INPUT -p tcp --dport 10000:11000 -j ACCEPT\n-A INPUT -p tcp --dport 10250 -j DROP\n", out: true, in: true},
		{name: "output", rules: "-P OUTPUT DROP\n-A OUTPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT\n", out: true, in: true,
			want: []string{"packet-filter/nft ip filter OUTPUT=NodeTrafficDropped warning"}},
		{name: "a chain that returns", rules: "-N x\n-A FORWARD -j x\n-A x -s 10.244.0.0/16 -j RETURN\n-A x -d 10.244.0.0/16 -j RETURN\n-A x -j DROP\n", out: true, in: true},
		{name: "an unlikely match before", rules: "-A FORWARD -m statistic --mode random --probability 0.999999 -j ACCEPT\n-A FORWARD -j DROP\n", out: true, in: true},
	}
}

// TestPacketFilterForReal: connections that pass and that do not, through rules as they are met in the field.
func TestPacketFilterForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	dir := t.TempDir()
	pod, other := filepath.Join(dir, "pod"), filepath.Join(dir, "other")
	hosttest.Attach(t, pod, "cali0", "10.244.0.1/24", "10.244.0.2/24")
	hosttest.Attach(t, other, "uplink", "192.0.2.1/24", "192.0.2.2/24")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		t.Skipf("needs forwarding: %v", err)
	}
	listen(t, pod, "10.244.0.2:80")
	listen(t, other, "192.0.2.2:80")
	for range 50 { // until the links carry
		if connects(pod, "192.0.2.2:80") && connects(other, "10.244.0.2:80") {
			break
		}
	}
	h := &host.Host{NodeName: "node-a", Paths: host.DefaultPaths(), Clock: host.Now}
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) {
		return []corev1.Pod{{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.2"}}}}}, nil
	}
	h.Paths.KubeletConfig = filepath.Join(dir, "config.yaml")
	put(t, host.Files{Root: dir}, "config.yaml", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS: [10.96.0.10]\n")
	check := PacketFilter()
	for _, s := range ruleSets() {
		for line := range strings.Lines(s.rules) {
			backend := "nft"
			if rest, ok := strings.CutPrefix(line, "legacy:"); ok {
				backend, line = "legacy", rest
			}
			hosttest.Iptables(t, backend, strings.Fields(line)...)
		}
		if got := connects(pod, "192.0.2.2:80"); got != s.out {
			t.Errorf("%s: a pod really reaches the outside: %t, want %t", s.name, got, s.out)
		}
		if got := connects(other, "10.244.0.2:80"); got != s.in {
			t.Errorf("%s: the outside really reaches a pod: %t, want %t", s.name, got, s.in)
		}
		found, err := check.Run(t.Context(), h)
		if diff := cmp.Diff(s.want, reasons(found)); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", s.name, err, diff)
		}
		for _, f := range found {
			t.Log(s.name+":", f.Message)
		}
		flush(t)
	}
	if found, err := check.Run(t.Context(), h); found != nil || err != nil {
		t.Errorf("cleared: %v, %v", found, err)
	}
}

func flush(t *testing.T) {
	t.Helper()
	for _, backend := range []string{"nft", "legacy"} {
		for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
			hosttest.Iptables(t, backend, "-P", chain, "ACCEPT")
		}
		hosttest.Iptables(t, backend, "-F")
		hosttest.Iptables(t, backend, "-X")
	}
	hosttest.Iptables(t, "nft", "-t", "raw", "-F")
}

// listen accepts connections in a network namespace until the test ends.
func listen(t *testing.T, pin, address string) {
	t.Helper()
	var listener net.Listener
	err := hosttest.InNetns(pin, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
}

// connects reports whether a connection can be made from a network namespace. (The socket is made on the calling thread.)
func connects(pin, address string) bool {
	return hosttest.InNetns(pin, func() error {
		conn, err := net.DialTimeout("tcp", address, 150*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	}) == nil
}
