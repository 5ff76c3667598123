package deliver_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
)

// natsServer is a real server in this process.
type natsServer struct {
	t    *testing.T
	dir  string
	port int
	*server.Server
}

func startNATS(t *testing.T) *natsServer {
	t.Helper()
	n := &natsServer{t: t, dir: t.TempDir(), port: server.RANDOM_PORT}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *natsServer) start() {
	n.t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n.port, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: n.dir})
	must(n.t, err)
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		n.t.Fatal("the server is not ready")
	}
	n.Server, n.port = s, s.Addr().(*net.TCPAddr).Port
}

func (n *natsServer) stop() {
	n.Shutdown()
	n.WaitForShutdown()
}

func (n *natsServer) url(subject string) string {
	return fmt.Sprintf("nats://127.0.0.1:%d/%s", n.port, subject)
}

func (n *natsServer) jetstream() jetstream.JetStream {
	n.t.Helper()
	conn, err := nats.Connect(n.ClientURL())
	must(n.t, err)
	n.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(n.t, err)
	return js
}

// stream makes a stream of all subjects below "fleet".
func (n *natsServer) stream() {
	n.t.Helper()
	_, err := n.jetstream().CreateStream(n.t.Context(), jetstream.StreamConfig{Name: "FLEET", Subjects: []string{"fleet.>"}})
	must(n.t, err)
}

// await waits until the stream has this many messages.
func (n *natsServer) await(want uint64) (stream jetstream.Stream) {
	n.t.Helper()
	eventually(n.t, fmt.Sprint(want, " messages"), func() bool {
		var err error
		stream, err = n.jetstream().Stream(n.t.Context(), "FLEET")
		must(n.t, err)
		return stream.CachedInfo().State.Msgs >= want
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

// A NATS subject gets each event once, signed, in the order of its node, also those from while its server was away. Two
// subscriptions that share a stream do not interfere.
func TestNATS(t *testing.T) {
	n := startNATS(t)
	n.stream()
	k := newKit(t, anywhereAt(n.url("fleet"), "127.0.0.0/8"), nil)
	k.add(deliver.Subscription{Name: "a", URL: n.url("fleet.a")})
	k.add(deliver.Subscription{Name: "b", URL: n.url("fleet.b")})
	k.append("x", "y", "x")
	n.await(6)
	n.stop()
	k.append("x", "y")
	eventually(t, "an attempt that fails", func() bool { return k.List()[0].Failed > 0 || k.List()[0].Problem != "" })
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

// If no stream takes a subject, no event is lost: the status shows the error, and the backlog is sent when one exists.
func TestNATSWithoutStream(t *testing.T) {
	n := startNATS(t)
	k := newKit(t, anywhereAt(n.url("fleet"), "127.0.0.0/8"), nil)
	k.add(deliver.Subscription{URL: n.url("fleet.a")})
	k.append("x")
	k.awaitProblem("no stream of JetStream takes it")
	n.stream()
	n.await(1)
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
	if clients := n.NumClients(); clients > 0 {
		t.Errorf("%d connections", clients)
	}
}
