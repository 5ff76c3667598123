package deliver_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// A receiver built with the CloudEvents SDK understands all modes over a real connection and can verify events. An https
// target is trusted by the authority that the operator names, and by no other.
func TestForeignReceiver(t *testing.T) {
	for _, mode := range []event.Mode{event.Batch, event.Structured, event.Binary} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := &receiver{}
			server := httptest.NewTLSServer(c)
			defer server.Close()
			settings := anywhereAt(server.URL, "127.0.0.0/8")
			file := filepath.Join(t.TempDir(), "ca.pem")
			must(t, os.WriteFile(file, []byte("no certificate"), 0o600))
			settings.Targets[0].CAFile = file
			k := newKit(t, settings, nil)
			k.add(deliver.Subscription{URL: server.URL + "/hook?a=b", Mode: mode})
			k.append("x", "y", "x", "z", "x")
			k.awaitProblem("no certificate in it")
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			must(t, os.WriteFile(file, ca, 0o600))
			journaltest.Eventually(t, "five events", func() bool { return len(c.got()) >= 5 })
			c.check(k)
			if mode == event.Batch && !c.batched {
				t.Error("no batch")
			}
		})
	}
}

// A name that resolved to a permitted address when it was checked, and to this machine's own when it is connected to,
// leads nowhere: each connection checks its own address.
func TestRebinding(t *testing.T) {
	c := &receiver{}
	l, err := net.Listen("tcp", "127.0.0.2:0")
	must(t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: c}}
	server.Start()
	defer server.Close()
	url := fmt.Sprint("http://hooks.example.com:", l.Addr().(*net.TCPAddr).Port)
	var address atomic.Pointer[netip.Addr]
	address.Store(new(netip.MustParseAddr("127.0.0.2")))
	k := newKit(t, anywhereAt(url, "127.0.0.2/32"), nil)
	k.stop()
	k.config.Resolver = resolver(t, &address)
	k.start()
	k.add(deliver.Subscription{URL: url})
	k.append("x")
	journaltest.Eventually(t, "one event", func() bool { return len(c.got()) == 1 })
	for i, own := range []string{"127.0.0.1", "::ffff:127.0.0.1"} {
		journaltest.Eventually(t, "no problem", func() bool { return k.status().Problem == "" })
		address.Store(new(netip.MustParseAddr(own)))
		server.CloseClientConnections()
		k.append("x")
		k.awaitProblem("127.0.0.1 is not permitted")
		address.Store(new(netip.MustParseAddr("127.0.0.2")))
		journaltest.Eventually(t, "the next", func() bool { return slices.Contains(c.got(), fmt.Sprint("x-", i+2)) })
	}
}

// resolver asks a name server that answers every question with this address: A with an IPv4 address, AAAA with one that
// is mapped into IPv6.
func resolver(t *testing.T, address *atomic.Pointer[netip.Addr]) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for buffer := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q, address := m.Questions[0], address.Load()
			answer := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}}
			switch {
			case q.Type == dnsmessage.TypeA && address.Is4():
				answer.Body = &dnsmessage.AResource{A: address.As4()}
			case q.Type == dnsmessage.TypeAAAA && address.Is4In6():
				answer.Body = &dnsmessage.AAAAResource{AAAA: address.As16()}
			}
			if answer.Body != nil {
				m.Answers = []dnsmessage.Resource{answer}
			}
			text, _ := m.Pack() // made of an unpacked question
			_, _ = server.WriteTo(text, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// Unless the operator permits it, no target is this machine, a neighbour on the link, or a cloud's metadata service, in
// whatever spelling.
func TestAddresses(t *testing.T) {
	anywhere, private := anywhereAt("http://a").Targets[0], anywhereAt("http://a", "10.0.0.0/8").Targets[0]
	for _, text := range []string{"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1",
		"fe80::1%eth0", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "0.0.0.0", "::",
		"224.0.0.1", "ff02::1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254",
		"255.255.255.255", "::7f00:1", "0.1.2.3"} {
		if address := netip.MustParseAddr(text); deliver.Permits(anywhere, address) || deliver.Permits(private, address) {
			t.Errorf("%s is permitted", text)
		}
	}
	for text, want := range map[string][2]bool{"10.0.0.1": {true, true}, "192.168.7.7": {true, false},
		"fd12::1": {true, false}, "198.51.100.1": {true, false}, "::ffff:10.1.2.3": {true, true}} {
		address := netip.MustParseAddr(text)
		if got := [2]bool{deliver.Permits(anywhere, address), deliver.Permits(private, address)}; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for _, url := range []string{"http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://169.254.169.254"} {
		k := newKit(t, anywhereAt(url), nil)
		k.add(deliver.Subscription{URL: url})
		k.append("x")
		k.awaitProblem("is not permitted")
		k.stop()
	}
}

// natsServer is a real server in this process.
type natsServer struct {
	*server.Server
	jetstream.JetStream // a client's view

	t       *testing.T
	options *server.Options
}

func startNATS(t *testing.T) *natsServer {
	t.Helper()
	n := &natsServer{t: t, options: &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir()}}
	n.start()
	t.Cleanup(func() { n.stop() })
	n.options.Port = n.Addr().(*net.TCPAddr).Port
	conn, err := nats.Connect(n.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	must(t, err)
	t.Cleanup(conn.Close)
	n.JetStream, err = jetstream.New(conn)
	must(t, err)
	return n
}

func (n *natsServer) start() {
	n.t.Helper()
	var err error
	n.Server, err = server.NewServer(n.options)
	must(n.t, err)
	n.Start()
	if !n.ReadyForConnections(30 * time.Second) {
		n.t.Fatal("the server is not ready")
	}
}

func (n *natsServer) stop() {
	n.Shutdown()
	n.WaitForShutdown()
}

func (n *natsServer) url(subject string) string {
	return fmt.Sprintf("nats://127.0.0.1:%d/%s", n.options.Port, subject)
}

// await waits until the stream has this many messages.
func (n *natsServer) await(want uint64) (stream jetstream.Stream) {
	n.t.Helper()
	journaltest.Eventually(n.t, fmt.Sprint(want, " messages"), func() bool {
		var err error
		stream, err = n.Stream(n.t.Context(), "FLEET")
		return err == nil && stream.CachedInfo().State.Msgs >= want
	})
	return stream
}

// events reads the whole stream in order, as a foreign program would: the IDs of each subject and node.
func (n *natsServer) events(stream jetstream.Stream) map[string][]string {
	n.t.Helper()
	ids := map[string][]string{}
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(n.t.Context(), sequence)
		must(n.t, err)
		var e cloudevents.Event
		must(n.t, e.UnmarshalJSON(m.Data))
		h := http.Header{}
		for name, values := range m.Header {
			h[http.CanonicalHeaderKey(name)] = values
		}
		if err := errors.Join(e.Validate(), verify(h, m.Data, secret)); err != nil ||
			m.Header.Get("content-type") != "application/cloudevents+json" {
			n.t.Errorf("%v %s: %v", m.Header, m.Data, err)
		}
		node, _, _ := strings.Cut(e.ID(), "-")
		ids[m.Subject+" "+node] = append(ids[m.Subject+" "+node], e.ID())
	}
	return ids
}

// A NATS subject gets each event once, signed, in the order of its node, also those from while its server was away, or no
// stream took the subject, as the status shows. Two subscriptions that share a stream do not interfere.
func TestNATS(t *testing.T) {
	n := startNATS(t)
	k := newKit(t, anywhereAt(n.url("fleet"), "127.0.0.0/8"), nil)
	problem := func(want string) {
		t.Helper()
		journaltest.Eventually(t, want, func() bool { return strings.Contains(k.List()[0].Problem, want) })
	}
	k.add(deliver.Subscription{Name: "a", URL: n.url("fleet.a")})
	k.add(deliver.Subscription{Name: "b", URL: n.url("fleet.b")})
	k.append("x", "y", "x")
	problem("no stream of JetStream takes it")
	_, err := n.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLEET", Subjects: []string{"fleet.>"}})
	must(t, err)
	n.await(6)
	n.stop()
	k.append("x", "y")
	problem("nats: ")
	n.start()
	for _, name := range []string{"a", "b"} { // otherwise the next attempt would come only minutes later
		must(t, k.Resume(t.Context(), me, name))
	}
	want := map[string][]string{"fleet.a x": {"x-1", "x-2", "x-3"}, "fleet.a y": {"y-1", "y-2"},
		"fleet.b x": {"x-1", "x-2", "x-3"}, "fleet.b y": {"y-1", "y-2"}}
	if diff := cmp.Diff(want, n.events(n.await(10))); diff != "" {
		t.Error(diff)
	}
}

// A target that the operator does not permit is neither registered nor connected to.
func TestNATSRefused(t *testing.T) {
	n := startNATS(t)
	k := newKit(t, anywhereAt(n.url("fleet.team")), nil)
	for _, one := range []deliver.Subscription{
		{URL: n.url("fleet.teams")}, {URL: n.url("fleet")}, {URL: n.url("fleet.team.>")}, {URL: n.url("fleet.team.*")},
		{URL: n.url("fleet.team/a")}, {URL: n.url("")}, {URL: n.url("fleet.team.a?x=y")},
		{URL: n.url("fleet.team.a"), Mode: event.Batch}, {URL: n.url("fleet.team.a"), Mode: event.Binary},
		{URL: strings.Replace(n.url("fleet.team.a"), "nats:", "tls:", 1)},
	} {
		one.Name = "a"
		if err := k.Add(t.Context(), me, one); !errors.Is(err, deliver.ErrRefused) {
			t.Errorf("%s %s: %v", one.URL, one.Mode, err)
		}
	}
	for _, target := range []string{"nats://nats.example.com/$SYS", "nats://nats.example.com/_INBOX.a", "nats://nats.example.com"} {
		settings := fmt.Sprintf("targets: [{url: %q, secretFile: /s}]", target)
		if _, err := deliver.Read(strings.NewReader(settings)); err == nil {
			t.Errorf("%s is taken", settings)
		}
	}
	k.add(deliver.Subscription{URL: n.url("fleet.team.a")})
	k.append("x")
	k.awaitProblem("127.0.0.1 is not permitted")
	if clients := n.NumClients(); clients != 1 { // the test's own
		t.Errorf("%d connections", clients)
	}
}
