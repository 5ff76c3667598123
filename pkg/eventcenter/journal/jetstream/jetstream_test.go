package jetstream_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/test/need"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// A replaced worker can append no more events, even before it notices; and only the worker appends derived events.
func TestFenced(t *testing.T) {
	dir := t.TempDir()
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: filepath.Join(dir, "nats"), Log: quiet()})
	must(t, err)
	t.Cleanup(node.Close)
	var both [2]*jetstream.Store
	for i := range both {
		both[i], err = jetstream.Open(t.Context(), jetstream.Options{Dir: filepath.Join(dir, fmt.Sprint(i)), Conn: node.Conn,
			Replicas: 1, Log: quiet(), BallastBytes: 1 << 16,
			Appended: func(records []journal.Record) (derived []journal.Event) {
				for _, r := range records {
					if r.Node == "a" {
						derived = append(derived, journal.Event{Source: "worker", ID: fmt.Sprint(i, r.ID), JSON: []byte("{}")})
					}
				}
				return derived
			}}, func(err error) { t.Log(err) })
		if err == nil {
			err = both[i].Start()
		}
		must(t, err)
		t.Cleanup(func() { _ = both[i].Close() })
	}
	must(t, both[0].Take(t.Context(), 5))
	journaltest.Append(t, both[1], journaltest.Of("a", 1))
	for both[1].Bounds().Newest < 2 { // the worker's derived event
		time.Sleep(time.Millisecond)
	}
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
	dir := t.TempDir()
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: filepath.Join(dir, "nats"), Log: quiet()})
	must(t, err)
	t.Cleanup(node.Close)
	open := func() *jetstream.Store {
		s, err := jetstream.Open(t.Context(), jetstream.Options{Dir: filepath.Join(dir, "journal"), Conn: node.Conn,
			Replicas: 1, Log: quiet(), BallastBytes: 1 << 16}, func(err error) { t.Log(err) })
		must(t, err)
		must(t, s.Start())
		return s
	}
	s := open()
	must(t, s.Take(t.Context(), 1))
	for i := range uint64(1100) {
		journaltest.Append(t, s, journaltest.Of("a", i+1))
	}
	must(t, s.Close())
	s = open()
	if err := s.Ready(); err != nil {
		t.Error(err)
	}
	must(t, s.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
