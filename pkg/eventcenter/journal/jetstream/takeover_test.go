package jetstream_test

import (
	"context"
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
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

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

// told is closed by the first line of a log.
type told chan struct{}

func (c told) Write(b []byte) (int, error) {
	close(c)
	return len(b), nil
}

// A SQLite journal, once taken over, has the same offsets and UUID and knows the same events, even if it was trimmed or
// the take-over was interrupted. No center opens the stream before it is proven to be the same.
func TestTakeOver(t *testing.T) {
	dir := t.TempDir()
	c := journaltest.NewClock()
	old, err := sqlite.Open(t.Context(), sqlite.Options{Dir: filepath.Join(dir, "old"), Log: quiet(), Now: c.Now,
		BallastBytes: 1 << 16})
	must(t, err)
	for day := range uint64(3) {
		for i := range uint64(400) {
			journaltest.Append(t, old, journaltest.Of("a", day*400+i+1))
		}
		c.Add(24 * 3600e9)
	}
	must(t, old.Trim(t.Context(), 400))
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: filepath.Join(dir, "nats"), Log: quiet()})
	must(t, err)
	t.Cleanup(node.Close)
	if _, err := jetstream.TakeOver(t.Context(), node.Conn, 1, &interrupted{old, 2}, quiet()); err == nil {
		t.Fatal("an interrupted take-over has no error")
	}
	if taken, err := jetstream.TakeOver(t.Context(), node.Conn, 1, changed{old}, quiet()); err == nil {
		t.Fatalf("what differs is taken: %+v", taken)
	}
	waiting, cancel := context.WithCancel(t.Context())
	open := func(ctx context.Context) (*jetstream.Store, error) {
		return jetstream.Open(ctx, jetstream.Options{Dir: filepath.Join(dir, "copy"), Conn: node.Conn, Replicas: 1,
			Log: quiet(), Now: c.Now, BallastBytes: 1 << 16}, func(error) { cancel() })
	}
	if s, err := open(waiting); err == nil {
		t.Fatalf("opened before it is proven: %v", s.Bounds())
	}
	takesPart, left := make(told), make(chan error, 1)
	go func() {
		left <- jetstream.AwaitTakeOver(t.Context(), node.Conn, slog.New(slog.NewTextHandler(takesPart, nil)))
	}()
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
	if err := <-left; err != nil {
		t.Error(err)
	}
	bounds := old.Bounds()
	must(t, old.Close())
	s, err := open(t.Context())
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
	if fmt.Sprint(got) != fmt.Sprint(journal.Appended{Last: 1201, New: 1, Duplicates: 1}) {
		t.Errorf("%+v", got)
	}
}
