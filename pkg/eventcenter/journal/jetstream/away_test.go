package jetstream_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// fetches counts how often a server logs that it was sent messages of the stream, instead of missing log entries.
type fetches struct{ n atomic.Int32 }

func (f *fetches) Enabled(context.Context, slog.Level) bool { return true }
func (f *fetches) WithAttrs([]slog.Attr) slog.Handler       { return f }
func (f *fetches) WithGroup(string) slog.Handler            { return f }
func (f *fetches) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "Catchup for stream '") && strings.Contains(r.Message, jetstream.Stream+"'") {
		f.n.Add(1)
	}
	return nil
}

// large are events large enough that the servers' compressed logs of the stream hold only a few.
func large(node string, first uint64) (events []journal.Event) {
	for sequence := first; sequence < first+100; sequence++ {
		e := journaltest.Of(node, sequence)
		data := make([]byte, 40_000)
		_, _ = rand.Read(data) // never fails
		e.JSON = fmt.Appendf(nil, `{"n":%d,"data":"%x"}`, sequence, data)
		events = append(events, e)
	}
	return events
}

// appendSoon appends events once a majority has a leader: an election may be in progress.
func appendSoon(t *testing.T, to *jetstream.Store, events ...journal.Event) (last uint64) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		appended, err := to.Append(t.Context(), events)
		if err == nil {
			return appended.Last
		}
		if !errors.Is(err, journal.ErrUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// snapshots returns the snapshots with which the servers' logs of the stream begin.
func (r *replicas) snapshots(which ...int) (all []string) {
	r.t.Helper()
	group := r.info(which[0]).Cluster.RaftGroup
	for _, i := range which {
		found, err := filepath.Glob(filepath.Join(r.dirs[i], "nats", "jetstream", "*", "_js_", group, "snapshots", "snap.*"))
		must(r.t, err)
		if found == nil {
			found = []string{fmt.Sprint("none of ", i)}
		}
		all = append(all, found...)
	}
	return all
}

// outgrow appends large events until the servers' logs begin after all earlier events. It returns how many.
func (r *replicas) outgrow(which ...int) (all uint64) {
	r.t.Helper()
	end := time.Now().Add(patience)
	for range 2 { // a server may first cut its log at the earlier end, as at the beginning of an election
		had := r.snapshots(which...)
		for slices.ContainsFunc(r.snapshots(which...), func(now string) bool {
			return slices.Contains(had, now) // servers write them concurrently, each when it can
		}) {
			if time.Now().After(end) {
				r.t.Fatal("the servers keep their logs")
			}
			appendSoon(r.t, r.all[which[0]], large("large", all+1)...)
			all += 100
		}
	}
	return all
}

// A replica is away for so long that the servers' logs of the stream no longer reach back to its end, and returns under
// load. It answers no request before it has all events acknowledged until then; no event is missing or duplicated.
func TestAway(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := newReplicas(t)
	log := &fetches{}
	load := r.send(0, 1, 2)
	load.await(t, 50)
	close(load.stop)
	load.running.Wait()
	r.same()
	away := (r.leader(0) + 1) % 3
	one, two := (away+1)%3, (away+2)%3
	r.stop(away)
	more := r.sendAs("later", one, two)
	all := r.outgrow(one, two)
	more.await(t, 50)
	acknowledged := r.all[two].Bounds().Newest
	r.log = slog.New(log)
	r.start(away)
	if t.Failed() {
		t.FailNow()
	}
	if newest := r.all[away].Bounds().Newest; newest < acknowledged {
		t.Errorf("it is open with %d of %d", newest, acknowledged)
	}
	more.await(t, 50)
	close(more.stop)
	more.running.Wait()
	for id := range more.acked {
		load.acked[id]++
	}
	for i := range all {
		e := journaltest.Of("large", i+1)
		load.acked[e.Source+" "+e.ID]++
	}
	r.same()
	load.once(t, r.all[away])
	// The copy may have been filled from the other servers while its own was still receiving the stream.
	for end := time.Now().Add(patience); log.n.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("all that it lacked was still in the servers' logs: it was not away for long enough")
		}
	}
}

// fault is a disk's, raised or ended.
func fault(t *testing.T, kind event.Type, sequence uint64) journal.Event {
	t.Helper()
	f := event.Fault{ID: "x", Check: "disk", Subject: finding.Subject{Kind: "disk", Name: "sda"}, Severity: finding.Fatal,
		Reason: "Fails"}
	e := event.Event{Type: kind, Cluster: "c", Node: "n", Time: time.Unix(1, 0).UTC(), Severity: finding.Fatal,
		Stream: "01J9AAAAAAAAAAAAAAAAAAAAAA", Sequence: sequence, Data: f}
	text, err := e.Encode()
	must(t, err)
	return journal.Event{Source: "/clusters/c/nodes/n", ID: e.ID(), Type: string(e.Type), Cluster: "c", Node: "n",
		Stream: e.Stream, Sequence: sequence, JSON: text}
}

// center opens the center of a replica.
func (r *replicas) center(i int) *eventcenter.Center {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	c, err := eventcenter.Open(ctx, eventcenter.Options{Dir: r.dirs[i], Log: quiet(), Replicated: func(ctx context.Context,
		_ string, appended func([]journal.Record) []journal.Event) (eventcenter.Replicated, error) {
		return r.open(ctx, i, appended, func(error) {})
	}})
	must(r.t, err)
	return c
}

func faults(c *eventcenter.Center) int {
	all, _ := c.Model.Faults(func(model.NodeFault) bool { return true })
	return len(all)
}

// A replica is cut off for longer than events and the servers' logs of them are kept: a fault that it knows has ended
// in the meantime, and no server still has that event. The replica does not become ready with its old state, and stops;
// after a restart it begins with the kept events, and tells readers of older ones that these are gone.
func TestAwayForLongerThanIsKept(t *testing.T) {
	need.Flag(t, *long, "-long")
	clock := journaltest.NewClock()
	r := newReplicas(t)
	for i := range r.all {
		r.stop(i)
	}
	r.now = clock.Now
	r.startAll()
	const away, worker, other = 0, 1, 2
	must(t, r.all[away].Close())
	r.all[away] = nil
	c := r.center(away)
	must(t, r.all[worker].Take(t.Context(), 1))
	known := journaltest.Append(t, r.all[worker], fault(t, event.FaultRaised, 1)).Last
	for end := time.Now().Add(patience); faults(c) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d faults", faults(c))
		}
	}
	must(t, c.Checkpoint())
	r.net.Cut(away, true)
	clock.Add(24 * time.Hour)
	appendSoon(t, r.all[worker], fault(t, event.FaultCleared, 2))
	clock.Add(24 * time.Hour)
	kept := appendSoon(t, r.all[worker], journaltest.Of("a", 1))
	upTo := r.all[worker].Expired(journal.Limits{Bytes: 1})
	if upTo != kept-1 {
		t.Fatalf("%d is to be trimmed, want %d", upTo, kept-1)
	}
	for end := time.Now().Add(patience); ; { // the server may not have the latest event yet
		err := r.all[worker].Trim(t.Context(), upTo)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.outgrow(worker, other) // otherwise the servers' logs still have the trimmed events, and it misses none
	r.net.Cut(away, false)
	limited, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Run(limited); !errors.Is(err, journal.ErrAnew) {
		t.Errorf("it goes on: %v", err)
	}
	if err := c.Journal.(eventcenter.Replicated).Ready(); !errors.Is(err, journal.ErrAnew) {
		t.Errorf("it calls itself ready: %v", err)
	}
	must(t, c.Close())
	c = r.center(away)
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if n := faults(c); n != 0 {
		t.Errorf("%d faults that ended while it was away", n)
	}
	if b := c.Journal.Bounds(); b.Oldest != kept || b.Newest < kept {
		t.Errorf("it has %d to %d, want from %d on", b.Oldest, b.Newest, kept)
	}
	var trimmed *journal.TrimmedError
	if _, err := c.Journal.Read(t.Context(), journal.Query{After: known, Limit: 1}); !errors.As(err, &trimmed) ||
		trimmed.Oldest != kept {
		t.Errorf("a cursor of before: %v", err)
	}
}
