package packetfilter

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// ruleSet is a set of rules and its expected effects: whether a pod's connections really pass, and the findings of the
// check.
type ruleSet struct {
	name  string
	rules string // lines of iptables
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
		{name: "iptables-services before flannel", rules: kubeRules +
			"-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n" + flannelRules, want: []string{forward}},
		{name: "iptables-services behind flannel", rules: kubeRules + flannelRules +
			"-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n", out: true, in: true},
		// other pods reach it
		{name: "only out is opened", rules: "-P FORWARD DROP\n-A FORWARD -m state --state ESTABLISHED -j ACCEPT\n-A " +
			"FORWARD -s 10.244.0.0/16 -j ACCEPT\n", out: true},
		{name: "a pod is dropped by its address",
			rules: "-N rogue\n-I FORWARD -j rogue\n-A rogue -s 10.244.0.0/24 -j DROP\n", in: false,
			want: []string{"packet-filter/nft ip filter rogue=PodTrafficDropped warning"}},
		{name: "another address is dropped", rules: "-I FORWARD -s 10.9.0.0/16 -j DROP\n-I FORWARD -p udp -j " +
			"DROP\n-I FORWARD -i docker0 -j DROP\n", out: true, in: true},
		{name: "calico accepts by mark", rules: "-N cali-FORWARD\n-P FORWARD DROP\n-A FORWARD -j cali-FORWARD\n" +
			"-A cali-FORWARD -i cali+ -j MARK --set-xmark 0x10000/0x10000\n-A cali-FORWARD -o cali+ -j MARK " +
			"--set-xmark 0x10000/0x10000\n-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT\n-A FORWARD -m state " +
			"--state ESTABLISHED -j ACCEPT\n", out: true, in: true},
		{name: "raw drops questions", rules: "-t raw -A PREROUTING -p udp --dport 53 -j DROP\n", out: true, in: true,
			want: []string{"packet-filter/nft ip raw PREROUTING=ServiceTrafficDropped warning"}},
		{name: "kubelet's port", rules: "-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -i lo -j " +
			"ACCEPT\n-A INPUT -p tcp --dport 22 -j ACCEPT\n-A INPUT -j REJECT\n", out: true, in: true,
			want: []string{"packet-filter/nft ip filter INPUT=KubeletPortDropped warning"}},
		{name: "kubelet's port is open for some", rules: "-A INPUT -p tcp --dport 22 -j ACCEPT\n-A INPUT -s " +
			"192.0.2.0/24 -j ACCEPT\n-A INPUT -j REJECT\n", out: true, in: true},
		{name: "kubelet's port is open", rules: "-P INPUT DROP\n-A INPUT -p tcp --dport 10000:11000 -j ACCEPT\n-A " +
			"INPUT -p tcp --dport 10250 -j DROP\n", out: true, in: true},
		{name: "a list of ports is open", rules: "-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp -m multiport --dports " +
			"22,443 -j ACCEPT\n-P INPUT DROP\n", out: true, in: true,
			want: []string{"packet-filter/nft ip filter INPUT=KubeletPortDropped warning"}},
		{name: "a list with kubelet's port", rules: "-P INPUT DROP\n-A INPUT -p tcp -m multiport --dports " +
			"22,10250:10260 -j ACCEPT\n", out: true, in: true},
		{name: "only what is translated, in both ways of saying it", rules: "-A FORWARD -m state --state ESTABLISHED " +
			"-j ACCEPT\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n-A FORWARD -j DROP\n",
			want: []string{forward}},
		{name: "output", rules: "-P OUTPUT DROP\n-A OUTPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT\n", out: true,
			in:   true,
			want: []string{"packet-filter/nft ip filter OUTPUT=NodeTrafficDropped warning"}},
		{name: "a chain that returns", rules: "-N x\n-A FORWARD -j x\n-A x -s 10.244.0.0/16 -j RETURN\n-A x -d " +
			"10.244.0.0/16 -j RETURN\n-A x -j DROP\n", out: true, in: true},
		{name: "an unlikely match before", rules: "-A FORWARD -m statistic --mode random --probability 0.999999 -j " +
			"ACCEPT\n-A FORWARD -j DROP\n", out: true, in: true},
	}
}

// TestPacketFilterForReal: connections that pass and that do not, with rules as found in the field.
func TestPacketFilterForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	bench := newFilterBench(t)
	for _, family := range []string{ipv4, ipv6} {
		for _, s := range ruleSets() {
			for line := range strings.Lines(sixth(family, s.rules)) {
				tables(family)(t, "nft", strings.Fields(line)...)
			}
			want := make([]string, 0, len(s.want))
			for _, w := range s.want {
				want = append(want, sixth(family, w))
			}
			bench.evaluate(t, family, family+" "+s.name, s.out, s.in, want)
			flush(t, family)
		}
	}
	if found, err := bench.check.Run(t.Context(), bench.host); found != nil || err != nil {
		t.Errorf("cleared: %v, %v", found, err)
	}
	bench.bothBackends(t)
	hosttest.Iptables(t, "legacy", "-A", "FORWARD", "-j", "DROP")
	if out, in := bench.connects(ipv4); out || in {
		t.Errorf("the other backend drops: out %t, in %t", out, in)
	}
	if found, err := bench.check.Run(t.Context(), bench.host); found != nil || err == nil ||
		!strings.Contains(err.Error(), "tables of it: ip filter") {
		t.Errorf("the other backend drops: %v, %v, want that it is undecided", found, err)
	}
}

// bothBackends is https://github.com/k3s-io/k3s/issues/1114 and https://github.com/kubernetes/kubernetes/issues/72370:
// Docker closes FORWARD with iptables-nft, the network opens that of iptables-legacy. Pods are cut off, and the node's own
// connections, those of its probes included, all pass.
func (b *filterBench) bothBackends(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(dockerRules) {
		hosttest.Iptables(t, "nft", strings.Fields(line)...)
	}
	for line := range strings.Lines(flannelRules) {
		hosttest.Iptables(t, "legacy", strings.Fields(line)...)
	}
	defer flush(t, ipv4)
	defer hosttest.Iptables(t, "legacy", "-F")
	if out, in := b.connects(ipv4); out || in {
		t.Errorf("both backends: a pod is not cut off: out %t, in %t", out, in)
	}
	for _, address := range []string{"10.244.0.2:80", "192.0.2.2:80"} {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			t.Fatalf("the node itself: %v", err)
		}
		conn.Close()
	}
	found, err := b.check.Run(t.Context(), b.host)
	want := []string{"packet-filter/nft ip filter FORWARD=PodTrafficDropped warning"}
	if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err == nil {
		t.Errorf("both backends: error %v (-want +got):\n%s", err, diff)
	}
}

// sixth translates rules of IPv4 to IPv6.
func sixth(family, text string) string {
	if family == ipv4 {
		return text
	}
	return strings.NewReplacer("10.244.0.0/16", "fd00:244::/48", "10.244.0.0/24", "fd00:244::/64", "10.9.0.0/16",
		"fd00:9::/48", "192.0.2.0/24", "2001:db8:2::/64",
		"icmp-host-prohibited", "icmp6-adm-prohibited", "nft ip ", "nft ip6 ").Replace(text)
}

func tables(family string) func(t testing.TB, backend string, args ...string) {
	if family == ipv6 {
		return hosttest.IP6tables
	}
	return hosttest.Iptables
}

// firewalld returns the rules of firewalld 1.3, without empty chains and nat: the uplink in the zone public.
func firewalld(zones string) string {
	return `table inet firewalld {
	chain filter_FWD_trusted { accept; }
	chain filter_IN_trusted { accept; }
	chain filter_FWD_public {
		oifname "uplink" accept
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_ZONES {
		` + zones + `
		iifname "uplink" goto filter_FWD_public
		goto filter_FWD_public
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24, 2002:a9fe::/32 } reject with icmpv6 addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_IN_public {
		tcp dport 22 accept
		ip6 daddr fe80::/64 udp dport 546 accept
		icmpv6 type { nd-neighbor-advert, nd-neighbor-solicit, nd-router-advert, nd-redirect } accept
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES {
		iifname "uplink" goto filter_IN_public
		goto filter_IN_public
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
}
`
}

// TestPacketFilterNative: the same with native rules of nft, which are for both families.
func TestPacketFilterNative(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	const (
		input   = "packet-filter/nft inet firewalld filter_INPUT=KubeletPortDropped warning"
		forward = "packet-filter/nft inet firewalld filter_FORWARD=PodTrafficDropped warning"
		mine    = "packet-filter/nft inet filter forward=PodTrafficDropped warning"
	)
	// As in the nftables wiki's example for a server.
	server := func(policy, rules string) string {
		return "table inet filter { chain forward { type filter hook forward priority 0; policy " + policy + ";\n" +
			"ct state vmap { established : accept, related : accept, invalid : drop }\n iif lo accept\n icmpv6 type " +
			"{ nd-neighbor-solicit, nd-neighbor-advert } accept\n" + rules + "\n }\n}"
	}
	bench := newFilterBench(t)
	for _, s := range []ruleSet{
		// https://github.com/flannel-io/flannel/issues/2055
		{name: "firewalld as it is installed", rules: firewalld(""), out: true, want: []string{input, forward}},
		// of other pods
		{name: "firewalld trusts the device of pods", rules: firewalld(`iifname "cali0" goto filter_FWD_trusted`),
			out: true, want: []string{input}},
		{name: "firewalld trusts the network of pods",
			rules: firewalld("ip saddr 10.244.0.0/16 goto filter_FWD_trusted\nip6 saddr fd00:244::/48 goto " +
				"filter_FWD_trusted"),
			out: true, want: []string{input}},
		{name: "a server's rules", rules: server("drop", ""), want: []string{mine}},
		{name: "a server's rules, opened by device",
			rules: server("drop", `iifname "cali*" accept; oifname "cali0" ct state new accept`), out: true, in: true},
		// a set of names may hold it
		{name: "another device is open", rules: server("drop",
			`iifname "eth1" accept; oifname { "eth1", "eth2" } accept`), out: false, in: false, want: nil},
		{name: "opened by a map", rules: server("drop", `iifname vmap { "cali0" : accept, "uplink" : accept }`),
			out: true, in: true},
		{name: "opened by a set", rules: server("drop", "ip saddr { 10.244.0.0/16, 192.0.2.0/24 } accept; ip6 saddr "+
			"{ fd00:244::/48, 2001:db8:2::/64 } accept"), out: true, in: true},
		{name: "ports are open", rules: server("accept", "tcp dport { 80, 443 } accept; drop"), out: true, in: true},
		{name: "translated connections only", rules: server("accept", "ct status dnat accept; drop"),
			want: []string{mine}},
		{name: "new ones by a map", rules: server("accept", "ct state vmap { new : drop, untracked : accept }"),
			want: []string{mine}},
		{name: "neither ping nor UDP", rules: server("accept", "meta l4proto { icmp, ipv6-icmp, udp } drop; meta "+
			"l4proto vmap { icmp : drop }"), out: true, in: true},
	} {
		hosttest.NFT(t, s.rules)
		for _, family := range []string{ipv4, ipv6} {
			bench.evaluate(t, family, family+" "+s.name, s.out, s.in, s.want)
		}
		hosttest.NFT(t, "flush ruleset")
	}
	for _, family := range []string{ipv4, ipv6} { // one family may be cut off alone
		hosttest.NFT(t, server("accept", "meta nfproto "+map[string]string{ipv4: "ipv4", ipv6: "ipv6"}[family]+" drop"))
		other := map[string]string{ipv4: ipv6, ipv6: ipv4}[family]
		bench.evaluate(t, family, family+" alone", false, false, []string{mine})
		bench.evaluate(t, other, "not "+other, true, true, []string{mine}) // a node of both families
		pods := bench.host.Kubelet.Pods
		// without such an address of a pod it is no fault
		bench.host.Kubelet.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
			list, err := pods(ctx)
			list[0].Status.PodIPs = slices.DeleteFunc(list[0].Status.PodIPs, func(ip corev1.PodIP) bool {
				return familyOf(netip.MustParseAddr(ip.IP)) == family
			})
			return list, err
		}
		bench.evaluate(t, other, "nobody has "+family, true, true, nil)
		bench.host.Kubelet.Pods = pods
		hosttest.NFT(t, "flush ruleset")
	}
}
