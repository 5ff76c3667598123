package checktest

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// NameServer answers every query with one response code, over UDP and TCP. With a negative code it does not answer.
type NameServer struct {
	Rcode     atomic.Int32
	Questions atomic.Int32
	Message   atomic.Pointer[[]byte] // recorded: the answer to every query, but for its ID
}

// ServeDNS answers queries at an address, over UDP and TCP, until the test ends.
func ServeDNS(t *testing.T, address string) *NameServer {
	t.Helper()
	s := &NameServer{}
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
				_, _ = packets.WriteTo([]byte("\x00\x01noise"), from) // must be ignored
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

func (s *NameServer) converse(conn net.Conn) {
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

func (s *NameServer) answer(question []byte) []byte {
	s.Questions.Add(1)
	var m dnsmessage.Message
	if s.Rcode.Load() < 0 || m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	if recorded := s.Message.Load(); recorded != nil {
		return append(question[:2:2], (*recorded)[2:]...)
	}
	m.Response, m.RCode = true, dnsmessage.RCode(s.Rcode.Load())
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

// DNSHost is a machine whose kubelet has clusterDNS and a resolver.
type DNSHost struct {
	*host.Host
	Up time.Duration
}

// NewDNSHost returns a machine whose kubelet has the DNS of the cluster and a file with resolvers.
func NewDNSHost(t *testing.T, cluster, resolver string) *DNSHost {
	t.Helper()
	h := &DNSHost{Host: hosttest.Host(t), Up: time.Hour}
	h.Kubelet.Process = nil
	h.Clock = func() finding.Timestamp { return finding.Timestamp{SinceBoot: h.Up} }
	WriteHostFile(t, h.Files, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\napiVersion: "+
		"kubelet.config.k8s.io/v1beta1\nclusterDNS: ["+cluster+"]\nclusterDomain: cluster.local\nresolvConf: "+
		"/run/resolv.conf\n")
	WriteHostFile(t, h.Files, "/run/resolv.conf", "# comment\nsearch example.org\nnameserver "+resolver+"\n")
	return h
}
