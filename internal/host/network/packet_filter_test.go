package network_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

// TestPacketFilter: real rules are read as written, and unreadable parts are named.
func TestPacketFilter(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	h := &host.Host{}
	if filter, err := network.ReadPacketFilter(h); err != nil || len(filter.Chains) != 0 {
		t.Fatalf("without rules: %+v, %v", filter, err)
	}
	rules := [][]string{
		{"-N", "KUBE-FORWARD"},
		{"-N", "mine"},
		{"-P", "FORWARD", "DROP"},
		{"-A", "FORWARD", "-m", "comment", "--comment", "kubernetes", "-j", "KUBE-FORWARD"},
		{"-A", "FORWARD", "-i", "cali+", "-o", "eth0", "-s", "10.244.0.0/16", "-j", "ACCEPT"},
		{"-A", "FORWARD", "-d", "10.96.0.10", "-p", "udp", "--dport", "53", "-j", "REJECT"},
		{"-A", "FORWARD", "-p", "tcp", "--dport", "1000:2000", "-g", "mine"},
		{"-A", "FORWARD", "!", "-s", "10.0.0.0/13", "-j", "DROP"},
		{"-A", "FORWARD"},
		{"-A", "KUBE-FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"},
		{"-A", "KUBE-FORWARD", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "ACCEPT"},
		{"-A", "KUBE-FORWARD", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED", "-j", "ACCEPT"},
		{"-A", "mine", "-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0", "-j", "LOG"},
		{"-A", "mine", "-j", "RETURN"},
		{"-A", "mine", "-p", "tcp", "-m", "multiport", "--dports", "22,1000:2000,443", "-j", "ACCEPT"},
		{"-A", "mine", "-p", "tcp", "-m", "multiport", "--sports", "22,443", "-j", "ACCEPT"},
		{"-A", "mine", "-p", "tcp", "-m", "multiport", "!", "--dports", "22,443", "-j", "ACCEPT"},
		{"-A", "mine", "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"},
		{"-A", "mine", "-m", "conntrack", "--ctstate", "UNTRACKED", "-j", "ACCEPT"},
		{"-A", "mine", "-m", "conntrack", "--ctstate", "SNAT", "-j", "ACCEPT"},
		{"-t", "raw", "-A", "PREROUTING", "-s", "10.244.0.0/17", "-j", "DROP"},
	}
	for _, family := range []string{"ip", "ip6"} {
		readBack(t, h, family, rules)
	}
	hosttest.Iptables(t, "legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "ACCEPT")
	hosttest.Iptables(t, "legacy", "-A", "FORWARD", "-j", "DROP")
	hosttest.IP6tables(t, "legacy", "-t", "mangle", "-L")
	filter, err := network.ReadPacketFilter(h)
	if diff := cmp.Diff([]string{"ip filter", "ip6 mangle"}, filter.Legacy); diff != "" || err != nil {
		t.Errorf("error %v, tables that are not read (-want +got):\n%s", err, diff)
	}
}

// sixth returns the IPv6 counterpart of the test's IPv4 prefix.
func sixth(family, text string) string {
	if family == "ip" {
		return text
	}
	return strings.NewReplacer("10.244.0.0/16", "fd00:244::/61", "10.96.0.10", "fd00:96::10", "10.0.0.0/13", "fd00::/9",
		"10.244.0.0/17", "fd00:244::/48", "/32", "/128").Replace(text)
}

func readBack(t *testing.T, h *host.Host, family string, rules [][]string) {
	t.Helper()
	prefix := func(text string) netip.Prefix { return netip.MustParsePrefix(sixth(family, text)) }
	want := map[string][]packetfilter.PacketRule{
		"filter/FORWARD": {
			{Verdict: "jump", Target: "KUBE-FORWARD"},
			{Verdict: "accept", Source: prefix("10.244.0.0/16"), In: "cali+", Out: "eth0"},
			{Verdict: "reject", Destination: prefix("10.96.0.10/32"), Protocol: 17,
				Port: packetfilter.PortRange{From: 53, To: 53}},
			{Verdict: "goto", Target: "mine", Protocol: 6, Port: packetfilter.PortRange{From: 1000, To: 2000}},
			{Verdict: "drop"},
			{},
		},
		"filter/KUBE-FORWARD": {
			{Verdict: "drop", NotNew: true},
			{Verdict: "accept", Mark: packetfilter.PacketMark{Value: 0x4000, Mask: 0x4000}},
			{Verdict: "accept"},
		},
		"filter/mine": {
			{Target: "LOG", Matches: []string{"statistic"}},
			{Verdict: "return"},
			{Verdict: "accept", Protocol: 6, Ports: []packetfilter.PortRange{{From: 22, To: 22}, {From: 1000, To: 2000},
				{From: 443, To: 443}}},
			{Verdict: "accept", Protocol: 6, Matches: []string{"multiport"}},
			{Verdict: "accept", Protocol: 6, Matches: []string{"multiport"}},
			{Verdict: "accept", Translated: true},
			{Verdict: "accept", Matches: []string{"conntrack"}},
			{Verdict: "accept", Matches: []string{"conntrack"}},
		},
		"raw/PREROUTING": {{Verdict: "drop", Source: prefix("10.244.0.0/17")}},
	}
	for _, rule := range rules {
		add := hosttest.Iptables
		if family == "ip6" {
			add = hosttest.IP6tables
		}
		words := make([]string, len(rule))
		for i, word := range rule {
			words[i] = sixth(family, word)
		}
		add(t, "nft", words...)
	}
	filter, err := network.ReadPacketFilter(h)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]packetfilter.PacketRule{}
	for _, chain := range filter.Chains {
		if chain.Family != family || len(chain.Rules) == 0 {
			continue
		}
		got[chain.Table+"/"+chain.Name] = chain.Rules
		if (chain.Name == "FORWARD") != (chain.Policy == "drop") || (chain.Hook != "") != (chain.Policy != "") {
			t.Errorf("%s: hook %q, policy %q of %s", family, chain.Hook, chain.Policy, chain.Name)
		}
		if (chain.Table == "raw") != (chain.Priority == -300) {
			t.Errorf("%s: priority %d of table %s", family, chain.Priority, chain.Table)
		}
	}
	for _, rules := range got { // the inverted part leaves no other trace
		for i := range rules {
			rules[i].Matches = slices.DeleteFunc(rules[i].Matches, func(m string) bool { return m == "nft source" })
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool {
		return a == b
	})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", family, diff)
	}
}

// TestPacketFilterSets: lookups of rules in sets and maps, and other elements of nft's own rules.
func TestPacketFilterSets(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.NFT(t, `
table inet mine {
	set ports { type inet_service; flags interval; elements = { 1000-2000, 2001-2002, 60000-65535 } }
	set empty { type inet_service; }
	set people { type ipv4_addr; elements = { 192.0.2.1 } }
	chain FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		ct state vmap { invalid : drop, established : accept, related : accept }
		ct state vmap { new : jump other, established : accept }
		iif lo accept
		ct state { new, untracked } accept
		ct state untracked accept
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport { 22, 443 } accept
		tcp dport @ports accept
		tcp dport @empty accept
		tcp dport != { 22, 443 } accept
		ip saddr @people accept
		ip saddr . tcp dport { 192.0.2.1 . 22 } accept
		ip6 daddr { ::/96, 2002::/24 } reject with icmpv6 addr-unreachable
		ip6 saddr fd00:244::/64 tcp dport 80 accept
		ip saddr 10.244.0.0/16 meta mark 0x4000 drop
		tcp dport vmap { 22 : accept, 23 : drop }
		iifname vmap { "cni0" : accept }
		fib daddr type local accept
		reject with icmpx admin-prohibited
	}
	chain other { }
}
table ip6 six {
	chain INPUT {
		type filter hook input priority 0; policy drop;
		ip6 daddr fe80::/10 udp dport 546 accept
		ip6 saddr ::1 ip6 nexthdr tcp accept
	}
}`)
	const tcp, udp = 6, 17
	prefix := netip.MustParsePrefix
	want := map[string][]packetfilter.PacketRule{
		"inet mine FORWARD": {
			{Verdict: "accept", NotNew: true},
			{Verdict: "accept", Translated: true},
			{NotNew: true},
			{Verdict: "jump", Target: "other"},
			{Verdict: "accept", In: "lo"},
			{Verdict: "accept"},
			{Verdict: "accept", Matches: []string{"untracked"}},
			{Verdict: "accept", Protocols: []uint8{1, 58}},
			{Verdict: "accept", Protocol: tcp, Ports: []packetfilter.PortRange{{From: 22, To: 22},
				{From: 443, To: 443}}},
			{Verdict: "accept", Protocol: tcp, Ports: []packetfilter.PortRange{{From: 1000, To: 2000},
				{From: 2001, To: 2002}, {From: 60000, To: 65535}}},
			{Verdict: "accept", Protocol: tcp, Matches: []string{"lookup"}},
			{Verdict: "accept", Protocol: tcp, Matches: []string{"lookup"}},
			{Verdict: "accept", Family: "ip", Matches: []string{"lookup"}},
			{Verdict: "accept", Family: "ip", Protocol: tcp, Matches: []string{"lookup"}},
			{Verdict: "reject", Family: "ip6", Matches: []string{"lookup"}},
			{Verdict: "accept", Family: "ip6", Source: prefix("fd00:244::/64"), Protocol: tcp,
				Port: packetfilter.PortRange{From: 80, To: 80}},
			{Verdict: "drop", Family: "ip", Source: prefix("10.244.0.0/16"),
				Mark: packetfilter.PacketMark{Value: 0x4000, Mask: 0xffffffff}},
			{Verdict: "accept", Protocol: tcp, Matches: []string{"nft map"}},
			{Verdict: "accept", Matches: []string{"nft map"}},
			{Verdict: "accept", Matches: []string{"fib", "nft "}},
			{Verdict: "reject"},
		},
		"ip6 six INPUT": {
			{Verdict: "accept", Destination: prefix("fe80::/10"), Protocol: udp, Port: packetfilter.PortRange{From: 546,
				To: 546}},
			{Verdict: "accept", Source: prefix("::1/128"), Protocol: tcp},
		},
	}
	filter, err := network.ReadPacketFilter((&host.Host{}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]packetfilter.PacketRule{}
	for _, chain := range filter.Chains {
		if len(chain.Rules) > 0 {
			got[chain.Family+" "+chain.Table+" "+chain.Name] = chain.Rules
		}
	}
	sorted := cmpopts.SortSlices(func(a, b packetfilter.PortRange) bool { return a.From < b.From })
	protocols := cmpopts.SortSlices(func(a, b uint8) bool { return a < b })
	samePrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), samePrefix, sorted, protocols); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
