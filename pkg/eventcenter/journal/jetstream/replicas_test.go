package jetstream_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/test/need"
)

var long = flag.Bool("long", false, "run the tests too that cut the network")

// patience is a time limit for conditions that hold at once on an idle machine.
const patience = 5 * time.Minute

// replicas are three replicas in one process.
type replicas struct {
	t     *testing.T
	net   *clustertest.Network
	dirs  [3]string
	nodes [3]*cluster.Node
	all   [3]*jetstream.Store
	now   func() time.Time // nil: time.Now
	log   *slog.Logger
}

func newReplicas(t *testing.T) *replicas {
	r := &replicas{t: t, net: clustertest.New(t), log: quiet()}
	for i := range r.all {
		r.dirs[i] = t.TempDir()
	}
	t.Cleanup(func() {
		for i := range r.all {
			r.stop(i)
		}
	})
	r.startAll()
	return r
}

func (r *replicas) startAll() {
	var starting sync.WaitGroup
	for i := range r.all {
		starting.Go(func() { r.start(i) })
	}
	starting.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

func (r *replicas) start(i int) {
	if !r.startNode(i) {
		return
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var last error
	s, err := r.open(ctx, i, nil, func(err error) { last = err })
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		r.t.Errorf("replica %d: %v; %v", i, err, last)
		return
	}
	r.all[i] = s
}

func (r *replicas) open(ctx context.Context, i int, appended func([]journal.Record) []journal.Event,
	waiting func(error)) (*jetstream.Store, error) {
	return jetstream.Open(ctx, jetstream.Options{Dir: filepath.Join(r.dirs[i], "journal"), Conn: r.nodes[i].Conn,
		Replicas: 3, Log: quiet(), BallastBytes: 1 << 16, Now: r.now, Appended: appended}, waiting)
}

func (r *replicas) startNode(i int) bool {
	var routes []string
	for _, route := range r.net.Routes[i] {
		if route != "" {
			routes = append(routes, route)
		}
	}
	node, err := cluster.Start(cluster.Config{Name: fmt.Sprint("replica-", i), Dir: filepath.Join(r.dirs[i], "nats"),
		Listen: r.net.Listen[i], Routes: routes, Secret: "secret", Log: r.log})
	if err != nil {
		r.t.Error(err)
		return false
	}
	r.nodes[i] = node
	return true
}

func (r *replicas) stop(i int) {
	if r.all[i] != nil {
		if err := r.all[i].Close(); err != nil {
			r.t.Error(err)
		}
		r.all[i] = nil
	}
	if r.nodes[i] != nil {
		r.nodes[i].Close()
		r.nodes[i] = nil
	}
}

// info returns a server's view of the stream once it has a leader: an election may be in progress.
func (r *replicas) info(from int) *natsjs.StreamInfo {
	r.t.Helper()
	js, err := natsjs.New(r.nodes[from].Conn)
	must(r.t, err)
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		stream, err := js.Stream(r.t.Context(), jetstream.Stream)
		if err == nil && stream.CachedInfo().Cluster.Leader != "" {
			return stream.CachedInfo()
		}
		if time.Now().After(end) {
			r.t.Fatalf("the stream has no leader: %v", err)
		}
	}
}

// leader returns which replica leads the stream.
func (r *replicas) leader(from int) (i int) {
	r.t.Helper()
	if _, err := fmt.Sscanf(r.info(from).Cluster.Leader, "replica-%d", &i); err != nil {
		r.t.Fatal(err)
	}
	return i
}

// same waits until the replicas have the same events.
func (r *replicas) same() {
	r.t.Helper()
	newest := uint64(0)
	for _, j := range r.all {
		newest = max(newest, j.Bounds().Newest)
	}
	var first []journal.Record
	for i := range r.all {
		for end := time.Now().Add(patience); r.all[i].Bounds().Newest < newest; {
			bounds := r.all[i].Bounds()
			select {
			case <-bounds.Changed:
			case <-time.After(time.Until(end)):
				r.t.Fatalf("replica %d has %d of %d", i, r.all[i].Bounds().Newest, newest)
			}
		}
		all := read(r.t, r.all[i])
		if first == nil {
			first = all
		} else if diff := cmp.Diff(first, all); diff != "" {
			r.t.Errorf("replica %d differs: %.2000s", i, diff)
		}
	}
}

// read returns all records, with hashes of their contents.
func read(t *testing.T, j *jetstream.Store) (all []journal.Record) {
	t.Helper()
	for after, newest := j.Bounds().Oldest-1, j.Bounds().Newest; after < newest; {
		page, err := j.Read(t.Context(), journal.Query{After: after, Limit: 100_000})
		if err != nil || len(page.Gaps) > 0 {
			t.Fatalf("gaps %v, %v", page.Gaps, err)
		}
		for _, r := range page.Records {
			sum := sha256.Sum256(r.JSON)
			r.JSON = sum[:]
			all = append(all, r)
		}
		after = page.Next
	}
	return all
}

// sent runs senders on some replicas until stop, each with its own nodes, and returns the acknowledged events.
type sent struct {
	stop    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex // guards the fields below
	acked   map[string]int
	refused int
}

func (r *replicas) send(which ...int) *sent { return r.sendAs("node", which...) }

func (r *replicas) sendAs(name string, which ...int) *sent {
	s := &sent{stop: make(chan struct{}), acked: map[string]int{}}
	for _, i := range which {
		for n := range 3 {
			journal := r.all[i]
			s.running.Go(func() { s.sender(r.t.Context(), journal, fmt.Sprintf("%s-%d-%d", name, i, n)) })
		}
	}
	return s
}

func (s *sent) sender(ctx context.Context, to *jetstream.Store, node string) {
	for sequence := uint64(1); ; {
		select {
		case <-s.stop:
			return
		default:
		}
		e := journaltest.Of(node, sequence)
		_, err := to.Append(ctx, []journal.Event{e})
		s.mu.Lock()
		if err == nil {
			s.acked[e.Source+" "+e.ID]++
			sequence++
		} else {
			s.refused++
		}
		s.mu.Unlock()
		if errors.Is(err, jetstream.ErrClosed) {
			return
		}
	}
}

// await returns when this many more are acknowledged.
func (s *sent) await(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.acked)
	}
	begun, end := count(), time.Now().Add(patience)
	for count() < begun+more {
		if time.Now().After(end) {
			t.Fatalf("only %d of %d events are acknowledged", count()-begun, more)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// once compares the journal with the acknowledged events.
func (s *sent) once(t *testing.T, j *jetstream.Store) {
	t.Helper()
	found := map[string]int{}
	for i, r := range read(t, j) {
		if r.Offset != uint64(i)+1 {
			t.Fatalf("offset %d in place %d", r.Offset, i+1)
		}
		found[r.Source+" "+r.ID]++
	}
	for id, n := range found {
		if n != 1 {
			t.Errorf("%s is there %d times", id, n)
		}
	}
	for id := range s.acked {
		if found[id] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", id, found[id])
		}
	}
	t.Logf("%d acknowledged, %d in the journal, %d attempts refused", len(s.acked), len(found), s.refused)
}

// All replicas append at the same time, the leader goes and returns, with its volume and without: every acknowledged
// event is there exactly once, at the same offset on each replica.
func TestReplicas(t *testing.T) {
	r := newReplicas(t)
	load := r.send(0, 1, 2)
	load.await(t, 100)
	gone := r.leader(0)
	r.stop(gone)
	load.await(t, 100)
	must(t, os.RemoveAll(r.dirs[gone]))
	r.start(gone)
	load.await(t, 100)
	close(load.stop)
	load.running.Wait()
	r.same()
	load.once(t, r.all[gone])
}

// A replica cut off from the others acknowledges no events and reports why; the others continue; when it returns, it
// catches up. Two replicas cut off from each other acknowledge none.
func TestPartition(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := newReplicas(t)
	apart := r.leader(0)
	rest := []int{(apart + 1) % 3, (apart + 2) % 3}
	load := r.send(rest...)
	load.await(t, 50)
	r.net.Cut(apart, true)
	_, err := r.all[apart].Append(t.Context(), []journal.Event{journaltest.Of("alone", 1)})
	if !errors.Is(err, journal.ErrUnavailable) {
		t.Errorf("without the others: %v", err)
	}
	load.await(t, 50)
	if page, err := r.all[apart].Read(t.Context(), journal.Query{Limit: 10}); err != nil || len(page.Records) != 10 {
		t.Errorf("what it has can be read: %d, %v", len(page.Records), err)
	}
	r.net.Cut(apart, false)
	for end := time.Now().Add(patience); ; {
		if _, err = r.all[apart].Append(t.Context(), []journal.Event{journaltest.Of("alone", 1)}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	close(load.stop)
	load.running.Wait()
	load.acked["/clusters/c/nodes/alone "+journaltest.Of("alone", 1).ID] = 1
	r.same()
	load.once(t, r.all[apart])
}
