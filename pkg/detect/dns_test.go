package detect

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// nameServer answers every question with one response code, over UDP and TCP. A negative code is silence.
type nameServer struct {
	rcode     atomic.Int32
	questions atomic.Int32
}

func serveDNS(t *testing.T, address string) *nameServer {
	t.Helper()
	s := &nameServer{}
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	streams, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close(); streams.Close() })
	go func() {
		data := make([]byte, 512)
		for {
			n, from, err := packets.ReadFrom(data)
			if err != nil {
				return
			}
			if answer := s.answer(data[:n]); answer != nil {
				_, _ = packets.WriteTo([]byte("\x00\x01noise"), from) // must be passed over
				_, _ = packets.WriteTo(answer, from)
			}
		}
	}()
	go func() {
		for {
			conn, err := streams.Accept()
			if err != nil {
				return
			}
			s.converse(conn)
		}
	}()
	return s
}

func (s *nameServer) converse(conn net.Conn) {
	defer conn.Close()
	data := make([]byte, 514)
	n, err := io.ReadAtLeast(conn, data, 14)
	if err != nil {
		return
	}
	if answer := s.answer(data[2:n]); answer != nil {
		_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	}
}

func (s *nameServer) answer(question []byte) []byte {
	s.questions.Add(1)
	var m dnsmessage.Message
	if s.rcode.Load() < 0 || m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Response, m.RCode = true, dnsmessage.RCode(s.rcode.Load())
	q := m.Questions[0]
	if m.RCode == dnsmessage.RCodeSuccess && q.Name.String() == "kubernetes.default.svc.cluster.local." {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: [4]byte{10, 96, 0, 1}},
		}}
	}
	data, err := m.Pack()
	if err != nil {
		return nil
	}
	return data
}

// dnsHost is a machine whose kubelet is told clusterDNS and a resolver.
type dnsHost struct {
	*host.Host
	up time.Duration
}

func newDNSHost(t *testing.T, cluster, resolver string) *dnsHost {
	t.Helper()
	h := &dnsHost{Host: hosttest.Host(t), up: time.Hour}
	h.Kubelet.Process = nil
	h.Clock = func() finding.Stamp { return finding.Stamp{Up: h.up} }
	put(t, h.Files, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"+
		"clusterDNS: ["+cluster+"]\nclusterDomain: cluster.local\nresolvConf: /run/resolv.conf\n")
	put(t, h.Files, "/run/resolv.conf", "# comment\nsearch example.org\nnameserver "+resolver+"\n")
	return h
}

func put(t *testing.T, files host.Files, name, text string) {
	t.Helper()
	path := files.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDNSForReal: servers at their own addresses and port, and a packet filter that really drops.
func TestDNSForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "10.96.0.10/32", "192.0.2.53/32")
	cluster, resolver := serveDNS(t, "10.96.0.10:53"), serveDNS(t, "192.0.2.53:53")
	h := newDNSHost(t, "10.96.0.10", "192.0.2.53")
	check := DNS(DNSSettings{Timeout: 50 * time.Millisecond, FatalAfter: 5 * time.Minute})
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
	code := func(s *nameServer, rcode int32) func() { return func() { s.rcode.Store(rcode) } }
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{name: "all well"},
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
		{"nothing is heard", add(dropAll), []string{c + "DNSNotAnswering warning", r + "DNSNotAnswering warning"}},
		{"for four minutes", func() { h.up += 3 * time.Minute }, []string{c + "DNSNotAnswering warning", r + "DNSNotAnswering warning"}},
		{"for five", func() { h.up += time.Minute }, []string{c + "DNSNotAnswering", r + "DNSNotAnswering"}},
		{"cleared", remove(dropAll), nil},
	}
	for _, step := range steps {
		h.up += time.Minute
		if step.do != nil {
			step.do()
		}
		found, err := check.Run(t.Context(), h.Host)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, reasons(found)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%v", step.name, diff, found)
		}
		for _, f := range found {
			t.Log(step.name+":", f.Message)
		}
	}
}

// TestDNSTraffic: a minute costs one question, and TCP one in five minutes.
func TestDNSTraffic(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "169.254.20.10/32")
	server := serveDNS(t, "169.254.20.10:53")
	h := newDNSHost(t, "169.254.20.10", "127.0.0.53")
	put(t, h.Files, "/run/resolv.conf", "")
	check := DNS(DefaultDNSSettings())
	for range 10 {
		if found, err := check.Run(t.Context(), h.Host); err != nil || found != nil {
			t.Fatalf("%v, %v", found, err)
		}
		h.up += time.Minute
	}
	if n := server.questions.Load(); n != 12 {
		t.Errorf("%d questions in 10 minutes, want 10 over UDP and 2 over TCP", n)
	}
	// The cache on this node is this node's own: its silence is fatal.
	quick := DNS(DNSSettings{Timeout: 20 * time.Millisecond, FatalAfter: time.Minute})
	server.rcode.Store(-1)
	for _, want := range []string{"DNSNotAnswering warning", "DNSNotAnswering"} {
		found, err := quick.Run(t.Context(), h.Host)
		if diff := cmp.Diff([]string{"dns-server/169.254.20.10=" + want}, reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
		h.up += time.Minute
	}
}

func TestDNSWithoutServers(t *testing.T) {
	h := newDNSHost(t, "", "127.0.0.53")
	check := DNS(DNSSettings{Timeout: time.Millisecond})
	found, err := check.Run(t.Context(), h.Host)
	if diff := cmp.Diff([]string{"dns-server/127.0.0.53=DNSResolverOnLoopback info"}, reasons(found)); diff != "" || err != nil {
		t.Errorf("loopback: error %v (-want +got):\n%s", err, diff)
	}
	put(t, h.Files, "/run/resolv.conf", "options edns0\n")
	if _, err := check.Run(t.Context(), h.Host); !isNotApplicable(err) {
		t.Errorf("no server at all: %v, want not applicable", err)
	}
	if err := os.Remove(h.Files.Path("/run/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	_, err = check.Run(t.Context(), h.Host)
	if partial, ok := errors.AsType[*finding.PartialError](err); !ok || partial.Subjects[finding.Subject{Kind: "file", Name: "/run/resolv.conf"}] == nil {
		t.Errorf("resolvConf is missing: %v, want doubt about it", err)
	}
	put(t, h.Files, "/var/lib/kubelet/config.yaml", "kind: Deployment\n")
	if _, err := check.Run(t.Context(), h.Host); err == nil || isNotApplicable(err) {
		t.Errorf("malformed configuration: %v, want an error", err)
	}
	if err := os.Remove(h.Files.Path("/var/lib/kubelet/config.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := check.Run(t.Context(), h.Host); !isNotApplicable(err) {
		t.Errorf("no kubelet: %v, want not applicable", err)
	}
}

func isNotApplicable(err error) bool {
	_, ok := errors.AsType[*finding.NotApplicableError](err)
	return ok
}

func TestDNSNeedsName(t *testing.T) {
	network := host.KubeletNetwork{ResolvConf: "/r"}
	seen := dnsSeen{Server: dnsServer{Address: netip.MustParseAddr("192.0.2.1"), Upstream: true}, Answer: host.DNSAnswer{RCode: "SERVFAIL"}}
	c := &dnsCheck{settings: DNSSettings{UpstreamName: "example.org"}}
	want := []string{"dns-server/192.0.2.1=DNSServerFailing warning"}
	if diff := cmp.Diff(want, reasons(c.judge([]dnsSeen{seen}, network))); diff != "" {
		t.Errorf("a name that resolvers must know (-want +got):\n%s", diff)
	}
}

func FuzzParseNameservers(f *testing.F) {
	f.Add("nameserver 1.2.3.4\nnameserver fe80::1%eth0 # x\nnameserver\n")
	f.Fuzz(func(t *testing.T, text string) {
		if servers := parseNameservers(text); len(servers) > maxNameservers {
			t.Errorf("%d servers", len(servers))
		}
	})
}

// pause waits a moment for something of another process that nothing announces.
func pause(t *testing.T) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(25 * time.Millisecond):
	}
}
