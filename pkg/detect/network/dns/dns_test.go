package dns

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// TestDNSForReal: servers at their own addresses and port, and a packet filter that really drops.
func TestDNSForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "10.96.0.10/32", "192.0.2.53/32")
	cluster, resolver := checktest.ServeDNS(t, "10.96.0.10:53"), checktest.ServeDNS(t, "192.0.2.53:53")
	h := checktest.NewDNSHost(t, "10.96.0.10", "192.0.2.53")
	check := New(Settings{Timeout: time.Second, FatalAfter: 5 * time.Minute})
	const c, r = "dns-server/10.96.0.10=", "dns-server/192.0.2.53="
	drop := []string{"INPUT", "-p", "udp", "-d", "10.96.0.10", "-j", "DROP"}
	dropTCP := []string{"INPUT", "-p", "tcp", "-d", "10.96.0.10", "-j", "DROP"}
	dropAll := []string{"INPUT", "-i", "lo", "-j", "DROP"}
	dropOut := []string{"OUTPUT", "-p", "udp", "-d", "192.0.2.53", "-j", "DROP"}
	reject := []string{"INPUT", "-p", "udp", "-d", "10.96.0.10", "-j", "REJECT"}
	rejectTCP := []string{"INPUT", "-p", "tcp", "-d", "10.96.0.10", "-j", "REJECT", "--reject-with", "tcp-reset"}
	add := func(rule []string) func() {
		return func() { hosttest.Iptables(t, "nft", append([]string{"-A"}, rule...)...) }
	}
	remove := func(rules ...[]string) func() {
		return func() {
			for _, rule := range rules {
				hosttest.Iptables(t, "nft", append([]string{"-D"}, rule...)...)
			}
		}
	}
	code := func(s *checktest.NameServer, rcode int32) func() { return func() { s.Rcode.Store(rcode) } }
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{name: "all healthy"},
		{"UDP dropped", add(drop), []string{c + "DNSOverUDPFailing warning"}},
		{"TCP too", add(dropTCP), []string{c + "DNSNotAnswering warning"}},
		{"cleared", remove(drop, dropTCP), nil},
		{"own packet filter", add(dropOut), []string{r + "DNSUnreachable warning"}},
		{"cleared", remove(dropOut), nil},
		{"rejected", func() { add(reject)(); add(rejectTCP)() }, []string{c + "DNSPortRefused warning"}},
		{"cleared", remove(reject, rejectTCP), nil},
		{"silent process", code(cluster, -1), []string{c + "DNSNotAnswering warning"}},
		{"wrong name", code(cluster, 3), []string{c + "DNSNameMissing warning"}},
		{"server failure", code(cluster, 2), []string{c + "DNSServerFailing warning"}},
		{"refused", code(cluster, 5), []string{c + "DNSServerFailing warning"}},
		{"cleared", code(cluster, 0), nil},
		{"a resolver may fail", code(resolver, 2), nil},
		{"and refuse", code(resolver, 5), nil},
		{"no answers", add(dropAll), []string{c + "DNSNotAnswering warning", r + "DNSNotAnswering warning"}},
		{"for four minutes", func() {
			h.Up += 3 * time.Minute
		}, []string{c + "DNSNotAnswering warning", r + "DNSNotAnswering warning"}},
		{"for five", func() { h.Up += time.Minute }, []string{c + "DNSNotAnswering", r + "DNSNotAnswering"}},
		{"cleared", remove(dropAll), nil},
	}
	for _, step := range steps {
		h.Up += time.Minute
		if step.do != nil {
			step.do()
		}
		found, err := check.Run(t.Context(), h.Host)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, checktest.Reasons(found)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%v", step.name, diff, found)
		}
		for _, f := range found {
			t.Log(step.name+":", f.Message)
		}
	}
}

// TestDNSTraffic: the check sends one query a minute, and one over TCP every five minutes.
func TestDNSTraffic(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "169.254.20.10/32")
	server := checktest.ServeDNS(t, "169.254.20.10:53")
	h := checktest.NewDNSHost(t, "169.254.20.10", "127.0.0.53")
	checktest.WriteHostFile(t, h.Files, "/run/resolv.conf", "")
	check := New(DefaultSettings())
	for range 10 {
		if found, err := check.Run(t.Context(), h.Host); err != nil || found != nil {
			t.Fatalf("%v, %v", found, err)
		}
		h.Up += time.Minute
	}
	if n := server.Questions.Load(); n != 12 {
		t.Errorf("%d questions in 10 minutes, want 10 over UDP and 2 over TCP", n)
	}
	// The cache on this node belongs to this node: its silence is fatal.
	quick := New(Settings{Timeout: 20 * time.Millisecond, FatalAfter: time.Minute})
	server.Rcode.Store(-1)
	for _, want := range []string{"DNSNotAnswering warning", "DNSNotAnswering"} {
		found, err := quick.Run(t.Context(), h.Host)
		if diff := cmp.Diff([]string{"dns-server/169.254.20.10=" + want}, checktest.Reasons(found)); diff != "" ||
			err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
		h.Up += time.Minute
	}
}

// TestDNSRecorded: answers that a resolver sent, and the answer that the specification of the cluster's DNS shows.
func TestDNSRecorded(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "10.96.0.10/32", "192.0.2.53/32")
	cluster, resolver := checktest.ServeDNS(t, "10.96.0.10:53"), checktest.ServeDNS(t, "192.0.2.53:53")
	h := checktest.NewDNSHost(t, "10.96.0.10", "192.0.2.53")
	recorded := checktest.Recorded(t, "testdata/dns/recorded.txtar")
	localhost, missing := fromHex(t, recorded["localhost"]),
		fromHex(t, recorded["kubernetes.default.svc.cluster.local"])
	documented := fromZone(t, checktest.Recorded(t, "testdata/dns/documented.txtar")["answer"])
	resolver.Message.Store(&localhost)
	for _, test := range []struct {
		name    string
		cluster []byte
		want    []string
	}{
		{"the cluster's DNS", documented, nil},
		{"a resolver in its place", missing, []string{"dns-server/10.96.0.10=DNSNameMissing warning"}},
	} {
		cluster.Message.Store(&test.cluster)
		found, err := New(DefaultSettings()).Run(t.Context(), h.Host)
		if diff := cmp.Diff(test.want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", test.name, err, diff)
		}
	}
}

func fromHex(t *testing.T, text []byte) []byte {
	t.Helper()
	message, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil || len(message) < 12 {
		t.Fatalf("%s: %v", text, err)
	}
	return message
}

// fromZone returns the answer with one address record, in the format of zone files.
func fromZone(t *testing.T, line []byte) []byte {
	t.Helper()
	record := strings.Fields(string(line)) // name, TTL, IN, A, address
	if len(record) != 5 {
		t.Fatalf("%s: want one record", line)
	}
	name := dnsmessage.MustNewName(record[0])
	question := dnsmessage.Question{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	message := dnsmessage.Message{
		Header: dnsmessage.Header{Response: true, Authoritative: true}, Questions: []dnsmessage.Question{question},
		Answers: []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: name, Type: question.Type, Class: question.Class, TTL: 4},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(record[4]).As4()},
		}},
	}
	data, err := message.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDNSWithoutServers(t *testing.T) {
	h := checktest.NewDNSHost(t, "", "127.0.0.53")
	check := New(Settings{Timeout: time.Millisecond})
	found, err := check.Run(t.Context(), h.Host)
	if diff := cmp.Diff([]string{"dns-server/127.0.0.53=DNSResolverOnLoopback info"},
		checktest.Reasons(found)); diff != "" || err != nil {
		t.Errorf("loopback: error %v (-want +got):\n%s", err, diff)
	}
	checktest.WriteHostFile(t, h.Files, "/run/resolv.conf", "options edns0\n")
	if _, err := check.Run(t.Context(), h.Host); !checktest.IsNotApplicable(err) {
		t.Errorf("no server at all: %v, want not applicable", err)
	}
	if err := os.Remove(h.Files.Path("/run/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	_, err = check.Run(t.Context(), h.Host)
	if partial, ok := errors.AsType[*finding.PartialError](err); !ok ||
		partial.Subjects[finding.Subject{Kind: "file", Name: "/run/resolv.conf"}] == nil {
		t.Errorf("resolvConf is missing: %v, want doubt about it", err)
	}
	checktest.WriteHostFile(t, h.Files, "/var/lib/kubelet/config.yaml", "kind: Deployment\n")
	if _, err := check.Run(t.Context(), h.Host); err == nil || checktest.IsNotApplicable(err) {
		t.Errorf("malformed configuration: %v, want an error", err)
	}
	if err := os.Remove(h.Files.Path("/var/lib/kubelet/config.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := check.Run(t.Context(), h.Host); !checktest.IsNotApplicable(err) {
		t.Errorf("no kubelet: %v, want not applicable", err)
	}
}

func TestDNSNeedsName(t *testing.T) {
	network := discover.KubeletNetwork{ResolvConf: "/r"}
	seen := serverResult{Server: dnsServer{Address: netip.MustParseAddr("192.0.2.1"), Upstream: true},
		Answer: dns.DNSAnswer{RCode: "SERVFAIL"}}
	c := &dnsCheck{settings: Settings{UpstreamName: "example.org"}}
	want := []string{"dns-server/192.0.2.1=DNSServerFailing warning"}
	if diff := cmp.Diff(want, checktest.Reasons(c.evaluate([]serverResult{seen}, network))); diff != "" {
		t.Errorf("a name that resolvers must know (-want +got):\n%s", diff)
	}
}

func FuzzParseNameservers(f *testing.F) {
	f.Add("nameserver 1.2.3.4\nnameserver fe80::1%eth0 # x\nnameserver\n")
	f.Fuzz(func(t *testing.T, text string) {
		if servers := parseNameservers(text); len(servers) > checkkit.MaxNameservers {
			t.Errorf("%d servers", len(servers))
		}
	})
}
