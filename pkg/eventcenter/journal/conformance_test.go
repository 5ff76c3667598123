package journal_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

type options struct {
	Now      func() time.Time
	Appended func([]journal.Record) []journal.Event
}

// opener opens a journal: the same one each time.
type opener func(t *testing.T, o options) eventcenter.Journal

// The tests of all journals.
func TestConformance(t *testing.T) {
	for kind, begin := range map[string]func(*testing.T) opener{"SQLite": openSQLite, "JetStream": openJetStream} {
		for name, test := range map[string]func(*testing.T, opener){
			"AppendAndRead": appendAndRead, "Duplicates": duplicates, "Trim": trim, "Derived": derived,
			"Together": together, "Whole": whole, "ClockBack": clockBack, "Backward": backward,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				open := begin(t)
				test(t, func(t *testing.T, o options) eventcenter.Journal {
					t.Helper()
					j := open(t, o)
					closing := once{j, sync.OnceValue(j.Close)}
					t.Cleanup(func() { closed(t, closing) })
					return closing
				})
			})
		}
	}
}

// once can be closed several times.
type once struct {
	eventcenter.Journal
	closing func() error
}

func (j once) Close() error { return j.closing() }

func closed(t *testing.T, j eventcenter.Journal) {
	t.Helper()
	must(t, j.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openSQLite(t *testing.T) opener {
	dir := t.TempDir()
	return func(t *testing.T, o options) eventcenter.Journal {
		t.Helper()
		s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir, Log: slog.New(slog.DiscardHandler), BallastBytes: 1 << 16,
			Now: o.Now, Appended: o.Appended})
		must(t, err)
		return s
	}
}

// openJetStream has one server, which only the journal under test uses.
func openJetStream(t *testing.T) opener {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	node, err := cluster.Start(cluster.Config{Name: "one", Dir: filepath.Join(dir, "nats"), Log: log})
	must(t, err)
	t.Cleanup(node.Close)
	term := uint64(0)
	return func(t *testing.T, o options) eventcenter.Journal {
		t.Helper()
		s, err := jetstream.Open(t.Context(), jetstream.Options{Dir: filepath.Join(dir, "journal"), Conn: node.Conn,
			Replicas: 1, Log: log, Now: o.Now, Appended: o.Appended, BallastBytes: 1 << 16, Within: 2 * time.Minute},
			func(err error) { t.Log(err) })
		must(t, err)
		must(t, s.Start())
		if s.Bounds().Oldest == 0 {
			t.Error("no bounds")
		}
		term++
		must(t, s.Take(t.Context(), term))
		return s
	}
}

func appendAndRead(t *testing.T, open opener) {
	j := open(t, options{})
	bounds := j.Bounds()
	got := journaltest.Append(t, j, journaltest.Of("a", 2), journaltest.Of("b", 1), journaltest.Of("a", 1)) // sorted by sequence
	if diff := cmp.Diff(journal.Appended{Last: 3, New: 3}, got); diff != "" {
		t.Error(diff)
	}
	select {
	case <-bounds.Changed:
	default:
		t.Error("nobody is told of what was appended")
	}
	foreign := journal.Event{Source: "urn:x", ID: "1", Type: "x", JSON: []byte(`{"a":"<1> ` + "\u2028" + `"}`)}
	journaltest.Append(t, j, foreign)
	journaltest.Expect(t, j, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	for _, test := range []struct {
		q    journal.Query
		want []string
	}{
		{journal.Query{After: 2}, []string{"3 a/2", "4 /0"}},
		{journal.Query{Limit: 1}, []string{"1 a/1"}},
		{journal.Query{Filter: journal.Filter{journal.Node: {"a"}}}, []string{"1 a/1", "3 a/2"}},
		{journal.Query{Filter: journal.Filter{journal.Type: {"x", "y"}}}, []string{"4 /0"}},
		{journal.Query{Filter: journal.Filter{journal.Check: {"dns"}, journal.Node: {"b"}}}, []string{"2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Cluster: {"c"}}, Backward: true, Limit: 2},
			[]string{"3 a/2", "2 b/1"}},
		{journal.Query{Filter: journal.Filter{journal.Reason: {`" OR 1=1 --`}}}, nil},
	} {
		if diff := cmp.Diff(test.want, journaltest.Texts(t, j, test.q)); diff != "" {
			t.Errorf("%+v: %s", test.q, diff)
		}
	}
	page, err := j.Read(t.Context(), journal.Query{Filter: journal.Filter{journal.Type: {"none"}}, Limit: 9})
	if err != nil || page.Next != 4 {
		t.Errorf("next %d, %v: it is to move past what the filter left out", page.Next, err)
	}
	closed(t, j)
	j = open(t, options{})
	journaltest.Expect(t, j, "1 a/1", "2 b/1", "3 a/2", "4 /0")
	page, err = j.Read(t.Context(), journal.Query{After: 3, Limit: 1})
	if err != nil || string(page.Records[0].JSON) != string(foreign.JSON) {
		t.Errorf("%s was stored as %s: %v", foreign.JSON, page.Records[0].JSON, err)
	}
	if j.Bounds().Journal != bounds.Journal || j.Bounds().Newest != 4 {
		t.Errorf("after a restart: %+v, before %+v", j.Bounds(), bounds)
	}
}

// A known event is not stored again, even after a restart or on another day; a late event is not a duplicate.
func duplicates(t *testing.T, open opener) {
	c := journaltest.NewClock()
	j := open(t, options{Now: c.Now})
	foreign := journal.Event{Source: "urn:x", ID: "1", JSON: []byte(`{"a":1}`)}
	journaltest.Append(t, j, journaltest.Of("a", 1), journaltest.Of("a", 5), foreign)
	for range 2 {
		changed := journaltest.Of("a", 5)
		changed.JSON = []byte(`{"other":true}`)
		got := journaltest.Append(t, j, journaltest.Of("a", 1), changed, foreign, foreign)
		if diff := cmp.Diff(journal.Appended{Last: 3, Duplicates: 4, Conflicts: 1}, got); diff != "" {
			t.Error(diff)
		}
		closed(t, j)
		c.Add(24 * time.Hour)
		j = open(t, options{Now: c.Now})
	}
	got := journaltest.Append(t, j, journaltest.Of("a", 3), journaltest.Of("a", 3), journaltest.Of("a", 6))
	if diff := cmp.Diff(journal.Appended{Last: 5, New: 2, Duplicates: 1}, got); diff != "" {
		t.Error(diff)
	}
	journaltest.Expect(t, j, "1 a/1", "2 a/5", "3 /0", "4 a/3", "5 a/6")
}

// Trimming drops whole days, never the newest, and for their age one at a time; a read of dropped offsets fails, it does
// not skip them.
func trim(t *testing.T, open opener) {
	c := journaltest.NewClock()
	j := open(t, options{Now: c.Now})
	for day := range uint64(4) {
		journaltest.Append(t, j, journaltest.Of("a", 2*day+1), journaltest.Of("a", 2*day+2))
		c.Add(24 * time.Hour)
	}
	if err := j.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	journaltest.Expect(t, j, "1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	if got := j.Expired(journal.Limits{Age: 47 * time.Hour}); got != 2 {
		t.Errorf("two days of four are too old: trim up to %d, want 2", got)
	}
	if got := j.Expired(journal.Limits{Bytes: 1}); got != 6 {
		t.Errorf("only the newest is kept in any case: trim up to %d, want 6", got)
	}
	if err := j.Trim(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	journaltest.Expect(t, j, "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	_, err := j.Read(t.Context(), journal.Query{After: 2, Limit: 1})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); !ok || trimmed.Oldest != 5 {
		t.Errorf("a read from what is gone: %v", err)
	}
	if got := journaltest.Append(t, j, journaltest.Of("a", 8)); got.Duplicates != 1 {
		t.Errorf("a duplicate of another day: %+v", got)
	}
	closed(t, j)
	j = open(t, options{Now: c.Now})
	journaltest.Append(t, j, journaltest.Of("a", 9))
	journaltest.Expect(t, j, "5 a/5", "6 a/6", "7 a/7", "8 a/8", "9 a/9")
}

// Derived events are appended directly behind their causes.
func derived(t *testing.T, open opener) {
	j := open(t, options{Appended: func(records []journal.Record) (derived []journal.Event) {
		for _, r := range records {
			if r.Sequence == 2 {
				derived = append(derived, journal.Event{Source: "/clusters/c/eventcenter", ID: r.ID, JSON: []byte("{}")})
			}
		}
		return derived
	}})
	journaltest.Append(t, j, journaltest.Of("a", 1), journaltest.Of("a", 2), journaltest.Of("a", 3))
	journaltest.Append(t, j, journaltest.Of("a", 4))
	journaltest.Expect(t, j, "1 a/1", "2 a/2", "3 a/3", "4 /0", "5 a/4")
}

// With concurrent appends, each event is stored once, and offsets have no holes.
func together(t *testing.T, open opener) {
	j := open(t, options{})
	const nodes, each = 20, 10
	var senders sync.WaitGroup
	for n := range nodes {
		senders.Go(func() {
			for i := range uint64(each) {
				for range 2 { // and again
					if _, err := j.Append(t.Context(), []journal.Event{journaltest.Of(fmt.Sprint(n), i+1)}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	senders.Wait()
	page, err := j.Read(t.Context(), journal.Query{Limit: 1000})
	if err != nil || len(page.Records) != nodes*each || len(page.Gaps) > 0 {
		t.Fatalf("%d records of %d, gaps %v: %v", len(page.Records), nodes*each, page.Gaps, err)
	}
	for i, r := range page.Records {
		if r.Offset != uint64(i)+1 {
			t.Fatalf("offset %d in place %d", r.Offset, i+1)
		}
	}
}

// A batch of the largest size is stored whole.
func whole(t *testing.T, open opener) {
	j := open(t, options{})
	var batch []journal.Event
	for i := range uint64(1000) {
		e := journaltest.Of("a", i+1)
		e.JSON = fmt.Appendf(nil, `{"n":%d,"pad":"%08000d"}`, i, 0)
		batch = append(batch, e)
	}
	if got := journaltest.Append(t, j, batch...); got.New != 1000 || got.Last != 1000 {
		t.Errorf("%+v", got)
	}
}

// If the clock is put back, no event is stored in an earlier day.
func clockBack(t *testing.T, open opener) {
	c := journaltest.NewClock()
	j := open(t, options{Now: c.Now})
	journaltest.Append(t, j, journaltest.Of("a", 1))
	c.Add(-48 * time.Hour)
	journaltest.Append(t, j, journaltest.Of("a", 2))
	c.Add(72 * time.Hour)
	journaltest.Append(t, j, journaltest.Of("a", 3))
	journaltest.Expect(t, j, "1 a/1", "2 a/2", "3 a/3")
	closed(t, j)
	j = open(t, options{Now: c.Now})
	journaltest.Expect(t, j, "1 a/1", "2 a/2", "3 a/3")
}

// A read in either direction, of any part, with or without a filter, finds all records of a sound journal, and no gap.
func backward(t *testing.T, open opener) {
	c := journaltest.NewClock()
	j := open(t, options{Now: c.Now})
	const days, each = 3, 7
	for day := range uint64(days) {
		for i := range uint64(each) {
			journaltest.Append(t, j, journaltest.Of([]string{"a", "b"}[i%2], day*each+i+1))
		}
		c.Add(24 * time.Hour)
	}
	for range 2 {
		for _, filter := range []journal.Filter{nil, {journal.Node: {"a"}}, {journal.Severity: {"info"}}, {journal.Node: {"none"}}} {
			for _, before := range []uint64{0, 1, 2, each, each + 1, 2*each + 2, days * each, days*each + 1, 1 << 62} {
				for _, limit := range []int{1, 3, 100} {
					forward := journaltest.Texts(t, j, journal.Query{Filter: filter})
					want := slices.DeleteFunc(forward, func(text string) bool {
						var offset uint64
						_, _ = fmt.Sscan(text, &offset)
						return before > 0 && offset >= before
					})
					slices.Reverse(want)
					want = want[:min(limit, len(want))]
					got := journaltest.Texts(t, j, journal.Query{After: before, Limit: limit, Filter: filter, Backward: true})
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%v before %d: %s", filter, before, diff)
					}
				}
			}
		}
		if gaps := j.Health().Gaps; len(gaps) > 0 {
			t.Errorf("gaps %v", gaps)
		}
		closed(t, j)
		j = open(t, options{Now: c.Now})
	}
}
