package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/test/need"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens the journal of a replica: of the only one, if the options name no other number.
func open(ctx context.Context, node *cluster.Node, o jetstream.Options, waiting func(error)) (*jetstream.Store, error) {
	o.Conn, o.Replicas, o.Log, o.BallastBytes = node.Conn, max(o.Replicas, 1), quiet(), 1<<16
	return jetstream.Open(ctx, o, waiting)
}

// A replaced worker can append no more events, even before it notices; and only the worker appends derived events.
func TestFenced(t *testing.T) {
	node := clustertest.One(t)
	var both [2]*jetstream.Store
	for i := range both {
		var err error
		both[i], err = open(t.Context(), node, jetstream.Options{Dir: t.TempDir(),
			Appended: func(records []journal.Record) (derived []journal.Event) {
				for _, r := range records {
					if r.Node == "a" {
						derived = append(derived, journal.Event{Source: "worker", ID: fmt.Sprint(i, r.ID), JSON: []byte("{}")})
					}
				}
				return derived
			}}, func(err error) { t.Log(err) })
		must(t, err)
		must(t, both[i].Start())
		t.Cleanup(func() { _ = both[i].Close() })
	}
	must(t, both[0].Take(t.Context(), 5))
	journaltest.Append(t, both[1], journaltest.Of("a", 1))
	journaltest.Eventually(t, "the worker's derived event", func() bool { return both[1].Bounds().Newest == 2 })
	must(t, both[1].Take(t.Context(), 9))
	if _, err := both[0].AppendAs(t.Context(), 5, []journal.Event{journaltest.Of("b", 1)}); !errors.Is(err,
		jetstream.ErrFenced) {
		t.Errorf("the worker of before: %v", err)
	}
	if err := both[0].Take(t.Context(), 5); !errors.Is(err, jetstream.ErrFenced) {
		t.Errorf("the worker of before takes over: %v", err)
	}
	got, err := both[1].AppendAs(t.Context(), 9, []journal.Event{journaltest.Of("c", 1)})
	must(t, err)
	page, err := both[1].Read(t.Context(), journal.Query{Limit: 10})
	if err != nil || got.Last != 3 || len(page.Records) != 3 || page.Records[1].ID != fmt.Sprint(0,
		journaltest.Of("a", 1).ID) {
		t.Errorf("%+v: %+v %v", got, page.Records, err)
	}
}

// A replica that opens a complete copy again is ready at once, even if no event comes.
func TestReadyAgain(t *testing.T) {
	need.Flag(t, *long, "-long")
	node, o := clustertest.One(t), jetstream.Options{Dir: t.TempDir()}
	for restart := range 2 {
		s, err := open(t.Context(), node, o, func(err error) { t.Log(err) })
		must(t, err)
		must(t, s.Start())
		if restart == 0 {
			must(t, s.Take(t.Context(), 1))
			for i := range uint64(1100) {
				journaltest.Append(t, s, journaltest.Of("a", i+1))
			}
		}
		must(t, s.Ready())
		must(t, s.Close())
	}
}

// interrupted is a journal of which only some pages can be read.
type interrupted struct {
	journal.Reader
	pages int
}

func (i *interrupted) Read(ctx context.Context, q journal.Query) (journal.Page, error) {
	if i.pages--; i.pages < 0 {
		return journal.Page{}, errors.New("interrupted")
	}
	return i.Reader.Read(ctx, q)
}

// changed is a journal whose first event is no longer the one that an earlier attempt has sent.
type changed struct{ journal.Reader }

func (c changed) Read(ctx context.Context, q journal.Query) (journal.Page, error) {
	page, err := c.Reader.Read(ctx, q)
	if q.After < 401 && len(page.Records) > 0 {
		page.Records[0].Reason = "Other"
	}
	return page, err
}

// A SQLite journal, once taken over, has the same offsets and UUID and knows the same events, even if it was trimmed or
// the take-over was interrupted. No center opens the stream before it is proven to be the same.
func TestTakeOver(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	old, err := sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(dir, "old"), Log: quiet(), Now: c.Now,
		BallastBytes: 1 << 16})
	must(t, err)
	for day := range uint64(3) {
		for i := range uint64(400) {
			journaltest.Append(t, old, journaltest.Of("a", day*400+i+1))
		}
		c.Add(24 * time.Hour)
	}
	must(t, old.Trim(t.Context(), 400))
	node := clustertest.One(t)
	for _, from := range []journal.Reader{&interrupted{old, 2}, changed{old}} {
		if taken, err := jetstream.TakeOver(t.Context(), node.Conn, 1, from, quiet()); err == nil {
			t.Fatalf("%T: %+v", from, taken)
		}
	}
	waiting, cancel := context.WithCancel(t.Context())
	copied := jetstream.Options{Dir: filepath.Join(dir, "copy"), Now: c.Now}
	if s, err := open(waiting, node, copied, func(error) { cancel() }); err == nil {
		t.Fatalf("opened before it is proven: %v", s.Bounds())
	}
	log, takesPart := clustertest.Watched("")
	left := make(chan error, 1)
	go func() { left <- jetstream.AwaitTakeOver(t.Context(), node.Conn, log) }()
	<-takesPart
	limited, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if jetstream.AwaitOthers(limited, node.Conn); limited.Err() == nil {
		t.Error("nobody is waited for, though one takes part")
	}
	taken, err := jetstream.TakeOver(t.Context(), node.Conn, 1, old, quiet())
	if err != nil || taken.Events != 800 || taken.Newest != 1200 {
		t.Fatalf("%+v, %v", taken, err)
	}
	jetstream.AwaitOthers(t.Context(), node.Conn) // although its server stays
	must(t, <-left)
	bounds := old.Bounds()
	must(t, old.Close())
	s, err := open(t.Context(), node, copied, func(err error) { t.Log(err) })
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	must(t, s.Start())
	if now := s.Bounds(); now.Journal != bounds.Journal || now.Oldest != 401 || now.Newest != 1200 {
		t.Errorf("%+v, was %+v", now, bounds)
	}
	page, err := s.Read(t.Context(), journal.Query{After: 700, Limit: 1})
	if err != nil || len(page.Records) != 1 || page.Records[0].ID != journaltest.Of("a", 701).ID {
		t.Errorf("an offset of before: %+v, %v", page, err)
	}
	if _, err := s.Read(t.Context(), journal.Query{After: 300, Limit: 1}); err == nil {
		t.Error("what was trimmed can be read")
	}
	got := journaltest.Append(t, s, journaltest.Of("a", 500), journaltest.Of("a", 1201))
	if diff := cmp.Diff(journal.Appended{Last: 1201, New: 1, Duplicates: 1}, got); diff != "" {
		t.Error(diff)
	}
}
