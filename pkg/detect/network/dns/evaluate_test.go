package dns

import (
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

// TestDNSCutOff: the node itself is to blame only if all servers of both kinds have been silent for long.
func TestDNSCutOff(t *testing.T) {
	silent := func(address string, upstream bool) serverResult {
		return serverResult{
			Server: dnsServer{Address: netip.MustParseAddr(address), Upstream: upstream},
			Err:    os.ErrDeadlineExceeded, Silence: time.Hour,
		}
	}
	refused := func(s serverResult) serverResult { s.Err = syscall.ECONNREFUSED; return s }
	cluster, other, resolver := silent("10.96.0.10", false), silent("10.96.0.11", false), silent("192.0.2.53", true)
	const a, b, r = "dns-server/10.96.0.10=", "dns-server/10.96.0.11=", "dns-server/192.0.2.53="
	for _, test := range []struct {
		name string
		seen []serverResult
		want []string
	}{
		{"no answers", []serverResult{cluster, resolver}, []string{a + "DNSNotAnswering", r + "DNSNotAnswering"}},
		{"one server refuses", []serverResult{cluster, refused(resolver)}, []string{a + "DNSNotAnswering warning", r +
			"DNSPortRefused warning"}},
		{"both refuse", []serverResult{refused(cluster), refused(resolver)}, []string{a + "DNSPortRefused warning", r +
			"DNSPortRefused warning"}},
		{"there are only the cluster's servers", []serverResult{cluster, other}, []string{a + "DNSNotAnswering warning",
			b +
				"DNSNotAnswering warning"}},
		{"there are only the node's resolvers", []serverResult{resolver}, []string{r + "DNSNotAnswering warning"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &dnsCheck{settings: Settings{FatalAfter: 5 * time.Minute}}
			if diff := cmp.Diff(test.want, checktest.Reasons(c.evaluate(test.seen,
				discover.KubeletNetwork{ResolvConf: "/r"}))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDNSMissingName: without upstreamName a resolver may answer that the name does not exist.
func TestDNSMissingName(t *testing.T) {
	seen := serverResult{Server: dnsServer{Address: netip.MustParseAddr("192.0.2.53"), Upstream: true},
		Answer: dns.DNSAnswer{RCode: "NXDOMAIN"}}
	for name, want := range map[string][]string{
		"":            nil,
		"example.org": {"dns-server/192.0.2.53=DNSNameMissing warning"},
	} {
		c := &dnsCheck{settings: Settings{UpstreamName: name}}
		if diff := cmp.Diff(want, checktest.Reasons(c.evaluate([]serverResult{seen},
			discover.KubeletNetwork{ResolvConf: "/r"}))); diff != "" {
			t.Errorf("asked for %q (-want +got):\n%s", name, diff)
		}
	}
}
