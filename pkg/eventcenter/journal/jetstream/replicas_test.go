package jetstream_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
const patience = journaltest.Patience

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

func newReplicas(t *testing.T, now func() time.Time) *replicas {
	t.Helper()
	r := &replicas{t: t, net: clustertest.New(t), now: now, log: quiet()}
	for i := range r.all {
		r.dirs[i] = t.TempDir()
		t.Cleanup(func() { r.stop(i) })
	}
	r.startAll()
	return r
}

func (r *replicas) startAll() {
	r.t.Helper()
	var starting sync.WaitGroup
	for i := range r.all {
		starting.Go(func() { r.start(i) })
	}
	if starting.Wait(); r.t.Failed() {
		r.t.FailNow()
	}
}

// start starts a replica, or fails the test.
func (r *replicas) start(i int) {
	node, err := r.net.Start(i, filepath.Join(r.dirs[i], "nats"), r.log)
	if err != nil {
		r.t.Error(err)
		return
	}
	r.nodes[i] = node
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	s, err := r.open(ctx, i, nil)
	if err == nil {
		r.all[i], err = s, s.Start()
	}
	if err != nil {
		r.t.Errorf("replica %d: %v", i, err)
	}
}

func (r *replicas) open(ctx context.Context, i int, appended func([]journal.Record) []journal.Event) (*jetstream.Store,
	error) {
	return open(ctx, r.nodes[i], jetstream.Options{Dir: filepath.Join(r.dirs[i], "journal"), Replicas: 3, Now: r.now,
		Appended: appended}, func(err error) { r.t.Log(err) })
}

// closeJournal closes a replica's journal; its server stays.
func (r *replicas) closeJournal(i int) {
	if r.all[i] != nil {
		if err := r.all[i].Close(); err != nil {
			r.t.Error(err)
		}
		r.all[i] = nil
	}
}

func (r *replicas) stop(i int) {
	r.closeJournal(i)
	if r.nodes[i] != nil {
		r.nodes[i].Close()
		r.nodes[i] = nil
	}
}

// info returns a server's view of the stream once it has a leader: an election may be in progress.
func (r *replicas) info(from int) (info *natsjs.StreamInfo) {
	r.t.Helper()
	js, err := natsjs.New(r.nodes[from].Conn)
	must(r.t, err)
	journaltest.Eventually(r.t, "a leader of the stream", func() bool {
		stream, err := js.Stream(r.t.Context(), jetstream.Stream)
		if err == nil {
			info = stream.CachedInfo()
		}
		return err == nil && info.Cluster.Leader != ""
	})
	return info
}

// leader returns which replica leads the stream.
func (r *replicas) leader() (i int) {
	r.t.Helper()
	_, err := fmt.Sscanf(r.info(0).Cluster.Leader, "replica-%d", &i)
	must(r.t, err)
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
	for i, j := range r.all {
		journaltest.Eventually(r.t, fmt.Sprintf("replica %d has all %d events", i, newest), func() bool {
			return j.Bounds().Newest >= newest
		})
		all, gaps := journaltest.All(r.t, j, journal.Query{})
		if i == 0 {
			first = all
		}
		if !reflect.DeepEqual(first, all) || len(gaps) > 0 {
			r.t.Errorf("replica %d differs, with gaps %v: %.2000v, want %.2000v", i, gaps, all, first)
		}
	}
}

// sent runs senders on some replicas until stop, each with its own nodes, and returns the acknowledged events.
type sent struct {
	over    atomic.Bool
	running sync.WaitGroup
	mu      sync.Mutex // guards acked
	acked   map[string]bool
}

func (r *replicas) send(name string, which ...int) *sent {
	s := &sent{acked: map[string]bool{}}
	for _, i := range which {
		for n := range 3 {
			journal := r.all[i]
			s.running.Go(func() { s.sender(r.t.Context(), journal, fmt.Sprintf("%s-%d-%d", name, i, n)) })
		}
	}
	return s
}

func (s *sent) sender(ctx context.Context, to *jetstream.Store, node string) {
	for sequence := uint64(1); !s.over.Load(); {
		e := journaltest.Of(node, sequence)
		_, err := to.Append(ctx, []journal.Event{e})
		if errors.Is(err, jetstream.ErrClosed) {
			return
		}
		if err == nil {
			s.add(e)
			sequence++
		}
	}
}

func (s *sent) add(acknowledged journal.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[acknowledged.Source+" "+acknowledged.ID] = true
}

func (s *sent) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.acked)
}

// await returns when this many more are acknowledged.
func (s *sent) await(t *testing.T, more int) {
	t.Helper()
	begun := s.count()
	journaltest.Eventually(t, "acknowledged events", func() bool { return s.count() >= begun+more })
}

func (s *sent) stop() {
	s.over.Store(true)
	s.running.Wait()
}

// once compares the journal with the acknowledged events.
func (s *sent) once(t *testing.T, j *jetstream.Store) {
	t.Helper()
	found := map[string]bool{}
	all, _ := journaltest.All(t, j, journal.Query{})
	for i, r := range all {
		id := r.Source + " " + r.ID
		if r.Offset != uint64(i)+1 || found[id] {
			t.Fatalf("%s at offset %d in place %d, there before: %t", id, r.Offset, i+1, found[id])
		}
		found[id] = true
	}
	for id := range s.acked {
		if !found[id] {
			t.Errorf("%s was acknowledged and is not there", id)
		}
	}
	t.Logf("%d acknowledged, %d in the journal", len(s.acked), len(found))
}

// All replicas append at the same time, the leader goes and returns, with its volume and without: every acknowledged
// event is there exactly once, at the same offset on each replica.
func TestReplicas(t *testing.T) {
	r := newReplicas(t, nil)
	load := r.send("node", 0, 1, 2)
	load.await(t, 100)
	gone := r.leader()
	r.stop(gone)
	load.await(t, 100)
	must(t, os.RemoveAll(r.dirs[gone]))
	r.start(gone)
	load.await(t, 100)
	load.stop()
	r.same()
	load.once(t, r.all[gone])
}

// A replica cut off from the others acknowledges no events and reports why; the others continue; when it returns, it
// catches up. Two replicas cut off from each other acknowledge none.
func TestPartition(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := newReplicas(t, nil)
	apart := r.leader()
	load := r.send("node", (apart+1)%3, (apart+2)%3)
	load.await(t, 50)
	r.net.Cut(apart, true)
	alone := journaltest.Of("alone", 1)
	if _, err := r.all[apart].Append(t.Context(), []journal.Event{alone}); !errors.Is(err, journal.ErrUnavailable) {
		t.Errorf("without the others: %v", err)
	}
	load.await(t, 50)
	if page, err := r.all[apart].Read(t.Context(), journal.Query{Limit: 10}); err != nil || len(page.Records) != 10 {
		t.Errorf("what it has can be read: %d, %v", len(page.Records), err)
	}
	r.net.Cut(apart, false)
	appendSoon(t, r.all[apart], alone)
	load.stop()
	load.add(alone)
	r.same()
	load.once(t, r.all[apart])
}
