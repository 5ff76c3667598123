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

// stream makes a stream of subjects.
func (n *natsServer) stream(subjects string) {
	n.t.Helper()
	_, err := n.jetstream().CreateStream(n.t.Context(), jetstream.StreamConfig{Name: "FLEET", Subjects: []string{subjects},
		Storage: jetstream.FileStorage})
	must(n.t, err)
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

// events reads the whole stream in order, as a foreign program would.
func (n *natsServer) events() (ids []string) {
	n.t.Helper()
	stream, err := n.jetstream().Stream(n.t.Context(), "FLEET")
	must(n.t, err)
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(n.t.Context(), sequence)
		must(n.t, err)
		var e cloudevents.Event
		if err := e.UnmarshalJSON(m.Data); err != nil || e.Validate() != nil {
			n.t.Errorf("%s: %v, %v", m.Data, err, e.Validate())
		}
		ids = append(ids, m.Subject+" "+e.ID())
		h := http.Header{}
		for name, values := range m.Header {
			h[http.CanonicalHeaderKey(name)] = values
		}
		if err := verify(h, m.Data, secret); err != nil || m.Header.Get("content-type") != "application/cloudevents+json" {
			n.t.Errorf("%v: %v", m.Header, err)
		}
	}
	return ids
}

// of returns the IDs that belong to a node.
func of(ids []string, node string) (own []string) {
	for _, id := range ids {
		if strings.Contains(id, " "+node+"-") {
			own = append(own, id)
		}
	}
	return own
}

// A NATS subject gets each event once, signed, in the order of its node, also those from while its server was away. Two
// subscriptions that share a stream do not interfere.
func TestNATS(t *testing.T) {
	n := startNATS(t)
	n.stream("fleet.>")
	k := newKit(t, anywhereAt(n.url("fleet"), "127.0.0.0/8"), nil)
	k.add(deliver.Subscription{Name: "a", URL: n.url("fleet.a")})
	k.add(deliver.Subscription{Name: "b", URL: n.url("fleet.b")})
	k.append("node-1", "node-2", "node-1")
	arrived := func(count int) func() bool {
		return func() bool { return len(n.events()) >= count }
	}
	eventually(t, "three events at each subject", arrived(6))
	n.stop()
	k.append("node-1", "node-2")
	eventually(t, "an attempt that fails", func() bool { return k.List()[0].Failed > 0 || k.List()[0].Problem != "" })
	n.start()
	for _, name := range []string{"a", "b"} { // otherwise the next attempt would come only minutes later
		must(t, k.Resume(t.Context(), deliver.Who{Name: "me"}, name))
	}
	eventually(t, "five events at each subject", arrived(10))
	ids := n.events()
	for _, subject := range []string{"fleet.a", "fleet.b"} {
		var own []string
		for _, id := range ids {
			if strings.HasPrefix(id, subject+" ") {
				own = append(own, id)
			}
		}
		want := []string{subject + " node-1-1", subject + " node-1-2", subject + " node-1-3"}
		if diff := cmp.Diff(want, of(own, "node-1")); diff != "" || len(of(own, "node-2")) != 2 {
			t.Errorf("%s: %v\n%s", subject, own, diff)
		}
	}
}

// If no stream takes a subject, no event is lost: the status shows the error, and the backlog is sent when one exists.
func TestNATSWithoutStream(t *testing.T) {
	n := startNATS(t)
	k := newKit(t, anywhereAt(n.url("fleet"), "127.0.0.0/8"), nil)
	k.add(deliver.Subscription{URL: n.url("fleet.a")})
	k.append("node-1")
	eventually(t, "the reason", func() bool { return strings.Contains(k.status().Problem, "no stream of JetStream takes it") })
	n.stream("fleet.>")
	eventually(t, "the event", func() bool { return len(n.events()) == 1 })
}

// A target that the operator does not permit is neither registered nor connected to.
func TestNATSRefused(t *testing.T) {
	n := startNATS(t)
	k := newKit(t, anywhereAt(n.url("fleet.team")), nil)
	for _, one := range []deliver.Subscription{
		{Name: "a", URL: n.url("fleet.teams")}, {Name: "a", URL: n.url("fleet")}, {Name: "a", URL: n.url("fleet.team.>")},
		{Name: "a", URL: n.url("fleet.team.*")}, {Name: "a", URL: n.url("fleet.team/a")}, {Name: "a", URL: n.url("")},
		{Name: "a", URL: n.url("fleet.team.a?x=y")}, {Name: "a", URL: n.url("fleet.team.a"), Mode: event.Batch},
		{Name: "a", URL: n.url("fleet.team.a"), Mode: event.Binary},
		{Name: "a", URL: strings.Replace(n.url("fleet.team.a"), "nats:", "tls:", 1)},
	} {
		if err := k.Add(t.Context(), deliver.Who{Name: "me"}, one); !errors.Is(err, deliver.ErrRefused) {
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
	k.append("node-1")
	eventually(t, "the refusal", func() bool { return strings.Contains(k.status().Problem, "127.0.0.1 is not permitted") })
	if clients := n.NumClients(); clients > 0 {
		t.Errorf("%d connections", clients)
	}
}
