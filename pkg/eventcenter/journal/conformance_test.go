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
	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster/clustertest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

const day = 24 * time.Hour

// kit is a journal under test with its clock.
type kit struct {
	eventcenter.Journal
	t        *testing.T
	dir      string
	clock    *journaltest.Clock
	appended func([]journal.Record) []journal.Event
	start    func(k *kit) eventcenter.Journal // opens the journal in the directory
}

// The tests of all journals.
func TestConformance(t *testing.T) {
	for kind, starter := range map[string]func(*testing.T) func(*kit) eventcenter.Journal{
		"SQLite": sqliteStarter, "JetStream": jetStreamStarter} {
		for name, test := range map[string]func(*kit){
			"AppendAndRead": appendAndRead, "Duplicates": duplicates, "Trim": trim, "Derived": derived,
			"Together": together, "Whole": whole, "ClockBack": clockBack, "Backward": backward,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				k := &kit{t: t, dir: t.TempDir(), clock: journaltest.NewClock(), start: starter(t)}
				k.appended = func([]journal.Record) []journal.Event { return nil }
				k.Journal = k.start(k)
				t.Cleanup(func() { must(t, k.Close()) })
				test(k)
			})
		}
	}
}

func sqliteStarter(t *testing.T) func(*kit) eventcenter.Journal {
	return func(k *kit) eventcenter.Journal {
		s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: k.dir, Log: slog.New(slog.DiscardHandler),
			BallastBytes: 1 << 16, Now: k.clock.Now, Appended: k.derive})
		must(t, err)
		return s
	}
}

// jetStreamStarter has one server, which only the journal under test uses.
func jetStreamStarter(t *testing.T) func(*kit) eventcenter.Journal {
	node, term := clustertest.One(t), uint64(0)
	return func(k *kit) eventcenter.Journal {
		s, err := jetstream.Open(t.Context(), jetstream.Options{Dir: filepath.Join(k.dir, "journal"), Conn: node.Conn,
			Replicas: 1, Log: slog.New(slog.DiscardHandler), Now: k.clock.Now, Appended: k.derive, BallastBytes: 1 << 16,
			Within: 2 * time.Minute}, func(err error) { t.Log(err) })
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (k *kit) derive(records []journal.Record) []journal.Event { return k.appended(records) }

// reopen closes the journal and opens it again, as after a restart.
func (k *kit) reopen() {
	k.t.Helper()
	must(k.t, k.Close())
	k.Journal = k.start(k)
}

func (k *kit) append(events ...journal.Event) journal.Appended {
	k.t.Helper()
	return journaltest.Append(k.t, k, events...)
}

// appends compares the result of an append.
func (k *kit) appends(want journal.Appended, events ...journal.Event) {
	k.t.Helper()
	if diff := cmp.Diff(want, k.append(events...)); diff != "" {
		k.t.Error(diff)
	}
}

// expect compares the whole journal with the expected records.
func (k *kit) expect(want ...string) {
	k.t.Helper()
	journaltest.Expect(k.t, k, want...)
}

func of(node string, sequence uint64) journal.Event { return journaltest.Of(node, sequence) }

func appendAndRead(k *kit) {
	t, bounds := k.t, k.Bounds()
	k.appends(journal.Appended{Last: 3, New: 3}, of("a", 2), of("b", 1), of("a", 1)) // sorted by sequence
	select {
	case <-bounds.Changed:
	default:
		t.Error("nobody is told of what was appended")
	}
	foreign := journal.Event{Source: "urn:x", ID: "1", Type: "x", JSON: []byte(`{"a":"<1> ` + "\u2028" + `"}`)}
	k.append(foreign)
	k.expect("1 a/1", "2 b/1", "3 a/2", "4 /0")
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
		if diff := cmp.Diff(test.want, journaltest.Texts(t, k, test.q)); diff != "" {
			t.Errorf("%+v: %s", test.q, diff)
		}
	}
	page, err := k.Read(t.Context(), journal.Query{Filter: journal.Filter{journal.Type: {"none"}}, Limit: 9})
	if err != nil || page.Next != 4 {
		t.Errorf("next %d, %v: it is to move past what the filter left out", page.Next, err)
	}
	k.reopen()
	k.expect("1 a/1", "2 b/1", "3 a/2", "4 /0")
	page, err = k.Read(t.Context(), journal.Query{After: 3, Limit: 1})
	if err != nil || string(page.Records[0].JSON) != string(foreign.JSON) {
		t.Errorf("%s was stored as %s: %v", foreign.JSON, page.Records[0].JSON, err)
	}
	if k.Bounds().Journal != bounds.Journal || k.Bounds().Newest != 4 {
		t.Errorf("after a restart: %+v, before %+v", k.Bounds(), bounds)
	}
}

// A known event is not stored again, even after a restart or on another day; a late event is not a duplicate.
func duplicates(k *kit) {
	foreign := journal.Event{Source: "urn:x", ID: "1", JSON: []byte(`{"a":1}`)}
	k.append(of("a", 1), of("a", 5), foreign)
	for range 2 {
		changed := of("a", 5)
		changed.JSON = []byte(`{"other":true}`)
		k.appends(journal.Appended{Last: 3, Duplicates: 4, Conflicts: 1}, of("a", 1), changed, foreign, foreign)
		k.clock.Add(day)
		k.reopen()
	}
	k.appends(journal.Appended{Last: 5, New: 2, Duplicates: 1}, of("a", 3), of("a", 3), of("a", 6))
	k.expect("1 a/1", "2 a/5", "3 /0", "4 a/3", "5 a/6")
	taken := of("a", 7)
	taken.Stream, taken.Sequence = "", 0 // a foreign event takes the identity of an agent's
	k.appends(journal.Appended{Last: 6, New: 1}, taken)
	k.appends(journal.Appended{Last: 6, Duplicates: 1}, of("a", 7))
	k.reopen()
	k.appends(journal.Appended{Last: 7, New: 1}, of("b", 1))
	k.expect("1 a/1", "2 a/5", "3 /0", "4 a/3", "5 a/6", "6 a/0", "7 b/1")
}

// Trimming drops whole days, never the newest, and for their age one at a time; a read of dropped offsets fails, it does
// not skip them.
func trim(k *kit) {
	t := k.t
	for n := range uint64(4) {
		k.append(of("a", 2*n+1), of("a", 2*n+2))
		k.clock.Add(day)
	}
	must(t, k.Seal(t.Context()))
	k.expect("1 a/1", "2 a/2", "3 a/3", "4 a/4", "5 a/5", "6 a/6", "7 a/7", "8 a/8")
	if got := k.Expired(journal.Limits{Age: 47 * time.Hour}); got != 2 {
		t.Errorf("two days of four are too old: trim up to %d, want 2", got)
	}
	if got := k.Expired(journal.Limits{Bytes: 1}); got != 6 {
		t.Errorf("only the newest is kept in any case: trim up to %d, want 6", got)
	}
	must(t, k.Trim(t.Context(), 5))
	k.expect("5 a/5", "6 a/6", "7 a/7", "8 a/8")
	_, err := k.Read(t.Context(), journal.Query{After: 2, Limit: 1})
	if trimmed, ok := errors.AsType[*journal.TrimmedError](err); !ok || trimmed.Oldest != 5 {
		t.Errorf("a read from what is gone: %v", err)
	}
	if got := k.append(of("a", 8)); got.Duplicates != 1 {
		t.Errorf("a duplicate of another day: %+v", got)
	}
	k.reopen()
	k.append(of("a", 9))
	k.expect("5 a/5", "6 a/6", "7 a/7", "8 a/8", "9 a/9")
}

// Derived events are appended directly behind their causes.
func derived(k *kit) {
	k.appended = func(records []journal.Record) (derived []journal.Event) {
		for _, r := range records {
			if r.Sequence == 2 {
				derived = append(derived, journal.Event{Source: "/clusters/c/eventcenter", ID: r.ID, JSON: []byte("{}")})
			}
		}
		return derived
	}
	k.append(of("a", 1), of("a", 2), of("a", 3))
	k.append(of("a", 4))
	k.expect("1 a/1", "2 a/2", "3 a/3", "4 /0", "5 a/4")
}

// With concurrent appends, each event is stored once, and offsets have no holes.
func together(k *kit) {
	const nodes, each = 20, 10
	var senders sync.WaitGroup
	for n := range nodes {
		senders.Go(func() {
			for i := range uint64(each) {
				for range 2 { // and again
					if _, err := k.Append(k.t.Context(), []journal.Event{of(fmt.Sprint(n), i+1)}); err != nil {
						k.t.Error(err)
					}
				}
			}
		})
	}
	senders.Wait()
	page, err := k.Read(k.t.Context(), journal.Query{Limit: 1000})
	if err != nil || len(page.Records) != nodes*each || len(page.Gaps) > 0 {
		k.t.Fatalf("%d records of %d, gaps %v: %v", len(page.Records), nodes*each, page.Gaps, err)
	}
	for i, r := range page.Records {
		if r.Offset != uint64(i)+1 {
			k.t.Fatalf("offset %d in place %d", r.Offset, i+1)
		}
	}
}

// A batch of the largest size is stored whole.
func whole(k *kit) {
	var batch []journal.Event
	for i := range uint64(1000) {
		e := of("a", i+1)
		e.JSON = fmt.Appendf(nil, `{"n":%d,"pad":"%08000d"}`, i, 0)
		batch = append(batch, e)
	}
	k.appends(journal.Appended{Last: 1000, New: 1000}, batch...)
}

// If the clock is put back, no event is stored in an earlier day.
func clockBack(k *kit) {
	k.append(of("a", 1))
	k.clock.Add(-2 * day)
	k.append(of("a", 2))
	k.clock.Add(3 * day)
	k.append(of("a", 3))
	k.expect("1 a/1", "2 a/2", "3 a/3")
	k.reopen()
	k.expect("1 a/1", "2 a/2", "3 a/3")
}

// A read in either direction, of any part, with or without a filter, finds all records of a sound journal, and no gap.
func backward(k *kit) {
	const days, each = 3, 7
	for n := range uint64(days) {
		for i := range uint64(each) {
			k.append(of([]string{"a", "b"}[i%2], n*each+i+1))
		}
		k.clock.Add(day)
	}
	for range 2 {
		for _, filter := range []journal.Filter{nil, {journal.Node: {"a"}}, {journal.Severity: {"info"}}, {journal.Node: {"none"}}} {
			forward := journaltest.Texts(k.t, k, journal.Query{Filter: filter})
			for _, before := range []uint64{0, 1, 2, each, each + 1, 2*each + 2, days * each, days*each + 1, 1 << 62} {
				for _, limit := range []int{1, 3, 100} {
					want := slices.DeleteFunc(slices.Clone(forward), func(text string) bool {
						var offset uint64
						_, _ = fmt.Sscan(text, &offset)
						return before > 0 && offset >= before
					})
					slices.Reverse(want)
					want = want[:min(limit, len(want))]
					got := journaltest.Texts(k.t, k, journal.Query{After: before, Limit: limit, Filter: filter, Backward: true})
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
						k.t.Errorf("%v before %d: %s", filter, before, diff)
					}
				}
			}
		}
		if gaps := k.Health().Gaps; len(gaps) > 0 {
			k.t.Errorf("gaps %v", gaps)
		}
		k.reopen()
	}
}
