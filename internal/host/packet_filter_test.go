package host_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// TestPacketFilter: real rules read back from both backends as one and the same.
func TestPacketFilter(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	h := &host.Host{}
	if filter, err := h.PacketFilter(); err != nil || len(filter.Chains) != 0 {
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
		{"-t", "raw", "-A", "PREROUTING", "-s", "10.244.0.0/17", "-j", "DROP"},
	}
	prefix := netip.MustParsePrefix
	want := map[string][]host.PacketRule{
		"filter/FORWARD": {
			{Verdict: "jump", Target: "KUBE-FORWARD"},
			{Verdict: "accept", Source: prefix("10.244.0.0/16"), In: "cali+", Out: "eth0"},
			{Verdict: "reject", Destination: prefix("10.96.0.10/32"), Protocol: 17, Port: host.PortRange{From: 53, To: 53}},
			{Verdict: "goto", Target: "mine", Protocol: 6, Port: host.PortRange{From: 1000, To: 2000}},
			{Verdict: "drop", Source: prefix("10.0.0.0/13"), Matches: []string{"inversion"}},
			{},
		},
		"filter/KUBE-FORWARD": {
			{Verdict: "drop", NotNew: true},
			{Verdict: "accept", Mark: host.PacketMark{Value: 0x4000, Mask: 0x4000}},
			{Verdict: "accept"},
		},
		"filter/mine": {
			{Target: "LOG", Matches: []string{"statistic"}},
			{Verdict: "return"},
		},
		"raw/PREROUTING": {{Verdict: "drop", Source: prefix("10.244.0.0/17")}},
	}
	for _, backend := range []string{"legacy", "nft"} {
		for _, rule := range rules {
			hosttest.Iptables(t, backend, rule...)
		}
		filter, err := h.PacketFilter()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]host.PacketRule{}
		for _, chain := range filter.Chains {
			if chain.Backend != backend || len(chain.Rules) == 0 {
				continue
			}
			got[chain.Table+"/"+chain.Name] = chain.Rules
			if (chain.Name == "FORWARD") != (chain.Policy == "drop") || (chain.Hook != "") != (chain.Policy != "") {
				t.Errorf("%s: hook %q, policy %q of %s", backend, chain.Hook, chain.Policy, chain.Name)
			}
		}
		if backend == "nft" { // nothing remains of what was inverted
			for _, rules := range got {
				for i := range rules {
					rules[i].Matches = slices.DeleteFunc(rules[i].Matches, func(m string) bool { return m == "nft source" })
				}
			}
			want["filter/FORWARD"][4] = host.PacketRule{Verdict: "drop"}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", backend, diff)
		}
		if filter.KubeChains[backend] != 1 {
			t.Errorf("%s: chains of Kubernetes: %v", backend, filter.KubeChains)
		}
	}
}
