package jetstream_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

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
	journaltest.Eventually(t, "a majority", func() bool {
		appended, err := to.Append(t.Context(), events)
		if err != nil && !errors.Is(err, journal.ErrUnavailable) {
			t.Fatal(err)
		}
		last = appended.Last
		return err == nil
	})
	return last
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

// outgrow appends large events until the servers' logs begin after all earlier events. It returns the large ones.
func (r *replicas) outgrow(which ...int) (all []journal.Event) {
	r.t.Helper()
	for range 2 { // a server may first cut its log at the earlier end, as at the beginning of an election
		had := r.snapshots(which...)
		journaltest.Eventually(r.t, "the servers cut their logs", func() bool {
			more := large("large", uint64(len(all))+1)
			appendSoon(r.t, r.all[which[0]], more...)
			all = append(all, more...)
			return !slices.ContainsFunc(r.snapshots(which...), func(now string) bool {
				return slices.Contains(had, now) // servers write them concurrently, each when it can
			})
		})
	}
	return all
}

// A replica is away for so long that the servers' logs of the stream no longer reach back to its end, and returns under
// load. It answers no request before it has all events acknowledged until then; no event is missing or duplicated.
func TestAway(t *testing.T) {
	need.Flag(t, *long, "-long")
	r := newReplicas(t, nil)
	load := r.send("node", 0, 1, 2)
	load.await(t, 50)
	load.stop()
	r.same()
	away := (r.leader() + 1) % 3
	one, two := (away+1)%3, (away+2)%3
	r.stop(away)
	more := r.send("later", one, two)
	for _, e := range r.outgrow(one, two) {
		more.add(e)
	}
	more.await(t, 50)
	acknowledged := r.all[two].Bounds().Newest
	var fetched <-chan struct{}
	r.log, fetched = clustertest.Watched("Catchup for stream '.*" + jetstream.Stream + "'")
	if r.start(away); t.Failed() {
		t.FailNow()
	}
	if newest := r.all[away].Bounds().Newest; newest < acknowledged {
		t.Errorf("it is open with %d of %d", newest, acknowledged)
	}
	more.await(t, 50)
	more.stop()
	r.same()
	load.once(t, r.all[away])
	more.once(t, r.all[away])
	select { // the copy may have been filled from the other servers while its own was still receiving the stream
	case <-fetched:
	case <-time.After(patience):
		t.Fatal("all that it lacked was still in the servers' logs: it was not away for long enough")
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
		return r.open(ctx, i, appended)
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
	r := newReplicas(t, clock.Now)
	const away, other = 0, 2
	worker := r.all[1]
	r.closeJournal(away)
	c := r.center(away)
	must(t, worker.Take(t.Context(), 1))
	known := journaltest.Append(t, worker, fault(t, event.FaultRaised, 1)).Last
	journaltest.Eventually(t, "one fault", func() bool { return faults(c) == 1 })
	must(t, c.Checkpoint())
	r.net.Cut(away, true)
	clock.Add(24 * time.Hour)
	appendSoon(t, worker, fault(t, event.FaultCleared, 2))
	clock.Add(24 * time.Hour)
	kept := appendSoon(t, worker, journaltest.Of("a", 1))
	upTo := worker.Expired(journal.Limits{Bytes: 1})
	if upTo != kept-1 {
		t.Fatalf("%d is to be trimmed, want %d", upTo, kept-1)
	}
	journaltest.Eventually(t, "trimmed", func() bool { // the server may not have the latest event yet
		return worker.Trim(t.Context(), upTo) == nil
	})
	r.outgrow(1, other) // otherwise the servers' logs still have the trimmed events, and it misses none
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
	defer func() { must(t, c.Close()) }()
	if n := faults(c); n != 0 {
		t.Errorf("%d faults that ended while it was away", n)
	}
	if b := c.Journal.Bounds(); b.Oldest != kept || b.Newest < kept {
		t.Errorf("it has %d to %d, want from %d on", b.Oldest, b.Newest, kept)
	}
	_, err := c.Journal.Read(t.Context(), journal.Query{After: known, Limit: 1})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); !ok || trimmed.Oldest != kept {
		t.Errorf("a cursor of before: %v", err)
	}
}
