package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
	"github.com/nodeagent/nodeagent/test/need"
)

const day = 24 * time.Hour

// openTest opens a journal, which is closed after the test if it is still open.
func openTest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	o.Dir, o.BallastBytes = dir, 1<<16
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { _ = closeOnce(s) })
	return s
}

func closeOnce(s *Store) error {
	select {
	case <-s.stopping:
		return nil
	default:
		return s.Close()
	}
}

// kit is a journal with its directory and clock.
type kit struct {
	*Store
	t     *testing.T
	dir   string
	clock *journaltest.Clock
}

func newKit(t *testing.T, dir string) *kit {
	t.Helper()
	c := journaltest.NewClock()
	return &kit{openTest(t, dir, Options{Now: c.Now}), t, dir, c}
}

// open opens the journal again, as a center that starts.
func (k *kit) open(o Options) {
	k.t.Helper()
	k.close()
	o.Now = k.clock.Now
	k.Store = openTest(k.t, k.dir, o)
}

func (k *kit) close() {
	k.t.Helper()
	must(k.t, closeOnce(k.Store))
}

func (k *kit) append(events ...journal.Event) journal.Appended {
	k.t.Helper()
	return journaltest.Append(k.t, k.Store, events...)
}

// sealedDay returns a closed journal of two files: a sealed one with these events, and one with one more event.
func sealedDay(t *testing.T, events ...journal.Event) *kit {
	t.Helper()
	k := newKit(t, t.TempDir())
	for group := range slices.Chunk(events, maxGroup) {
		k.append(group...)
	}
	k.clock.Add(day)
	k.append(of("last", 1))
	must(t, k.Seal(t.Context()))
	k.close()
	return k
}

// expect compares the whole journal with the expected records and gaps.
func (k *kit) expect(want ...string) {
	k.t.Helper()
	journaltest.Expect(k.t, k.Store, want...)
}

// expectLost checks all files, and compares the offsets of all known gaps.
func (k *kit) expectLost(want ...uint64) {
	k.t.Helper()
	_, err := k.Check(k.t.Context(), WithoutRest)
	must(k.t, err)
	same(k.t, "lost", want, offsetsOf(k.Health().Gaps))
}

func same(t *testing.T, what string, want, got []uint64) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func offsetsOf(gaps []journal.Gap) (offsets []uint64) {
	for _, g := range gaps {
		for offset := g.From; offset <= g.To; offset++ {
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

// file returns the path of the file that begins with an offset.
func (k *kit) file(first uint64) string { return filepath.Join(k.dir, partitionName(first)) }

func (k *kit) files() []string {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.dir, "*.db"))
	must(k.t, err)
	return files
}

// edit changes the bytes of a file.
func edit(t *testing.T, name string, change func(data []byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, change(data), 0o600))
}

// openAnd opens a file outside the journal and executes a statement.
func openAnd(t *testing.T, path, statement string) {
	t.Helper()
	db, err := open(path, writing)
	must(t, err)
	defer db.Close()
	_, err = db.Exec(statement)
	must(t, err)
}

// readOnly opens a file without our code.
func readOnly(t *testing.T, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+name+"?immutable=1")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func of(node string, sequence uint64) journal.Event { return journaltest.Of(node, sequence) }

// many returns events of a node, starting with a sequence.
func many(from, count uint64) (events []journal.Event) {
	for i := range count {
		events = append(events, of("a", from+i))
	}
	return events
}

// large is an event with a text of this many bytes.
func large(sequence uint64, size int) journal.Event {
	e := of("a", sequence)
	e.JSON = fmt.Appendf(nil, `{"n":%d,"text":%q}`, sequence, strings.Repeat("x", size))
	return e
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Two processes never write the same journal.
func TestOneWriter(t *testing.T) {
	k := newKit(t, t.TempDir())
	if s, err := Open(t.Context(), k.Options); err == nil {
		t.Errorf("%s is open twice", s.Dir)
	}
}

// Only a copy takes records with their offsets: in another journal the writing goroutine gives them.
func TestNoCopy(t *testing.T) {
	k := newKit(t, t.TempDir())
	if err := k.Put(t.Context(), []journal.Record{{Offset: 1, Event: of("a", 1)}}, Position{}); !errors.Is(err, errNoCopy) {
		t.Error(err)
	}
	if _, _, err := k.Plan(t.Context(), time.Now(), nil); !errors.Is(err, errNoCopy) {
		t.Error(err)
	}
}

// A file of another format is refused by name, and stays as it is. Salvage converts older ones.
func TestOtherFormats(t *testing.T) {
	k := sealedDay(t, of("a", 1), foreign("1"))
	openAnd(t, k.file(1), "DROP INDEX events_identity; DROP INDEX events_node; DROP TABLE filter")
	for _, format := range []int{0, 1, 2, version + 1} {
		openAnd(t, k.file(1), fmt.Sprint("UPDATE meta SET version = ", format))
		o := k.Options
		_, writing := Open(t.Context(), o)
		o.ReadOnly = true
		_, reading := Open(t.Context(), o)
		to := filepath.Join(t.TempDir(), "new")
		_, salvaging := Salvage(t.Context(), k.dir, to, o.Log)
		refused := []error{writing, reading}
		if format == 0 || format > version {
			refused = append(refused, salvaging)
		} else {
			must(t, salvaging)
			converted := newKit(t, to)
			converted.expect("1 a/1", "2 /0", "3 last/1")
			converted.expectLost()
			if again := converted.append(of("a", 1), foreign("1")); again.Duplicates != 2 {
				t.Errorf("format %d: %+v, want two duplicates", format, again)
			}
		}
		for _, err := range refused {
			for _, want := range []string{k.file(1), fmt.Sprintf("its format is %d", format), "eventcenter salvage"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("format %d: no %q in %v", format, want, err)
				}
			}
		}
	}
}

// A reader that goes away in the middle of a page leaves no gap behind.
func TestInterruptedReadIsNoGap(t *testing.T) {
	k := newKit(t, t.TempDir())
	k.append(many(1, 2000)...)
	for i := range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
		q := journal.Query{Limit: 1000, Backward: i%2 == 0}
		if i%4 > 1 {
			q.Filter = journal.Filter{journal.Node: {"a"}}
		}
		page, err := k.Read(ctx, q)
		cancel()
		if err == nil && len(page.Records) == 0 {
			t.Fatalf("%v: no error, and no records", q)
		}
	}
	same(t, "gaps", nil, offsetsOf(k.Health().Gaps))
}

// The check reads each event, even large ones.
func TestCheckOfLargeEvents(t *testing.T) {
	k := newKit(t, t.TempDir())
	for sequence := range uint64(250) {
		k.append(large(sequence+1, pageBytes/100))
	}
	k.close()
	k.upper(1, `"n":240,`)
	k.open(Options{ReadOnly: true})
	k.expectLost(240)
}

// The check pauses after each step, and blocks no other operation while it does.
func TestCheckRests(t *testing.T) {
	const ofADay = 2*checkedAtOnce + 1
	k := newKit(t, t.TempDir())
	for day := range uint64(3) {
		k.append(many(day*ofADay+1, ofADay)...)
		k.clock.Add(24 * time.Hour)
	}
	var rests []time.Duration
	_, err := k.Check(t.Context(), func(worked time.Duration) {
		if rests = append(rests, worked); len(rests) > 1 {
			return
		}
		k.append(of("a", 3*ofADay+1)) // on the next day, so that the days before can be sealed
		if err := errors.Join(k.Seal(t.Context()), k.Trim(t.Context(), ofADay)); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	if steps := 1 + 2*3; len(rests) != steps { // one of the first file, which is then trimmed
		t.Errorf("%d rests, want %d", len(rests), steps)
	}
	if slices.Min(rests) <= 0 || slices.Max(rests) > time.Minute {
		t.Errorf("worked %v", rests)
	}
	same(t, "gaps", nil, offsetsOf(k.Health().Gaps))
}

// A check whose context ends during a pause stops reading.
func TestCheckEnds(t *testing.T) {
	k := newKit(t, t.TempDir())
	k.append(many(1, 2*checkedAtOnce)...)
	ctx, cancel := context.WithCancel(t.Context())
	rests := 0
	if _, err := k.Check(ctx, func(time.Duration) { rests++; cancel() }); err == nil || rests != 1 {
		t.Errorf("%v after %d rests", err, rests)
	}
}

// onTmpfs returns a journal on a small file system of its own, and the name of a file beside it that fills it.
func onTmpfs(t *testing.T, size string) (k *kit, filler string) {
	t.Helper()
	need.Root(t, "mounts a tmpfs")
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return newKit(t, filepath.Join(dir, "j")), filepath.Join(dir, "filler")
}

// expectFull fails the test if an event is taken.
func (k *kit) expectFull(e journal.Event) {
	k.t.Helper()
	if _, err := k.Append(k.t.Context(), []journal.Event{e}); !errors.Is(err, journal.ErrFull) {
		k.t.Fatalf("taken on a full disk: %v", err)
	}
}

// On a full disk, writes fail and reads work; when space is free again, writes continue, and each acknowledged event is
// there exactly once.
func TestFullDisk(t *testing.T) {
	k, filler := onTmpfs(t, "8m")
	must(t, os.WriteFile(filler, make([]byte, 4<<20), 0o600))
	acked, err := uint64(0), error(nil)
	for err == nil && acked < 10_000 {
		if _, err = k.Append(t.Context(), []journal.Event{large(acked+1, 4000)}); err == nil {
			acked++
		}
	}
	if !errors.Is(err, journal.ErrFull) || acked < 50 {
		t.Fatalf("after %d events: %v", acked, err)
	}
	for range 3 {
		k.expectFull(large(acked+1, 4000))
	}
	page, err := k.Read(t.Context(), journal.Query{After: acked - 10, Limit: 100})
	if err != nil || len(page.Records) != 10 {
		t.Errorf("%d of the last 10 can be read: %v", len(page.Records), err)
	}
	full := func(want bool) {
		t.Helper()
		_, err := os.Stat(k.ballast())
		if is, freed := !k.Health().FullSince.IsZero(), errors.Is(err, os.ErrNotExist); is != want || freed != want {
			t.Errorf("full %t, ballast freed %t (%v), want %t", is, freed, err, want)
		}
	}
	full(true)
	must(t, os.Remove(filler))
	k.append(large(acked, 4000), large(acked+1, 4000))
	full(false)
	k.expectLost()
	if newest := k.Bounds().Newest; newest != acked+1 {
		t.Errorf("newest %d of %d", newest, acked+1)
	}
}

// If a disk is full when a new day begins, the day's file that could not be completed is not used: later events go into
// one that readers know.
func TestFullAtMidnight(t *testing.T) {
	k, filler := onTmpfs(t, "24m")
	const streams = 10_000 // the new file begins with their watermarks
	var events []journal.Event
	for i := range streams {
		events = append(events, of(fmt.Sprint("node-", i), 1))
	}
	k.append(events...)
	_, err := k.writer.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	free, err := k.free()
	must(t, err)
	must(t, os.WriteFile(filler, make([]byte, free-300<<10), 0o600)) // enough for an empty file
	k.clock.Add(day)
	for range 2 {
		k.expectFull(of("node-0", 2))
	}
	if files := k.files(); len(files) != 1 {
		t.Errorf("files: %v", files)
	}
	must(t, os.Remove(filler))
	k.append(of("node-0", 2), of("node-1", 2))
	if got := journaltest.Texts(t, k, journal.Query{After: streams}); len(got) != 2 || got[0] != "10001 node-0/2" {
		t.Errorf("what was acknowledged is read as %v", got)
	}
}
