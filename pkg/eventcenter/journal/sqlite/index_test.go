package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// An event that only the index of identities still has is lost: sent again, it is stored again, in a new file.
func TestIndexOfLostEvent(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	journaltest.Append(t, s, foreign("1"), foreign("2"), foreign("3"))
	name := filepath.Join(dir, partitionName(1))
	openAnd(t, name, `PRAGMA writable_schema = ON;
		CREATE TABLE hidden AS SELECT * FROM sqlite_schema WHERE name = 'events_identity';
		DELETE FROM sqlite_schema WHERE name = 'events_identity'`)
	openAnd(t, name, `DELETE FROM events WHERE offset = 2`)
	openAnd(t, name, `PRAGMA writable_schema = ON; INSERT INTO sqlite_schema SELECT * FROM hidden;
		DROP TABLE hidden`)
	done := journaltest.Append(t, s, foreign("2"), foreign("3"), foreign("4"))
	if done.New != 2 || done.Duplicates != 1 || done.Last != 5 {
		t.Errorf("%+v", done)
	}
	journaltest.Expect(t, s, "1 /0", "3 /0", "4 /0", "5 /0", "gap 2-2")
}

// Without the watermarks of the newest file, known events are still known.
func TestLostWatermarks(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	journaltest.Append(t, s, of("a", 1))
	c.Add(24 * time.Hour)
	journaltest.Append(t, s, of("a", 2))
	must(t, s.Close())
	openAnd(t, filepath.Join(dir, partitionName(2)), "DROP TABLE streams")
	s = openTest(t, dir, Options{Now: c.Now})
	if done := journaltest.Append(t, s, of("a", 2), of("a", 3)); done.New != 1 || done.Duplicates != 1 {
		t.Errorf("%+v", done)
	}
	journaltest.Expect(t, s, "1 a/1", "2 a/2", "3 a/3")
}

// An event above its stream's watermark may be stored nevertheless: a duplicate, and no damage.
func TestAboveTheWatermark(t *testing.T) {
	c, dir := journaltest.NewClock(), t.TempDir()
	s := openTest(t, dir, Options{Now: c.Now})
	agents := of("a", 2)
	other := agents
	other.Stream, other.Sequence = "", 0 // the same identity, as a foreign event
	journaltest.Append(t, s, of("a", 1), other)
	if done := journaltest.Append(t, s, agents, of("a", 3)); done.New != 1 || done.Duplicates != 1 || done.Last != 3 {
		t.Errorf("%+v", done)
	}
	must(t, s.Close())
	openAnd(t, filepath.Join(dir, partitionName(1)), "UPDATE streams SET highest = 1")
	s = openTest(t, dir, Options{Now: c.Now})
	if done := journaltest.Append(t, s, of("a", 3), of("a", 4)); done.New != 1 || done.Duplicates != 1 {
		t.Errorf("%+v", done)
	}
	journaltest.Expect(t, s, "1 a/1", "2 a/0", "3 a/3", "4 a/4")
	if len(s.partitions()) != 1 || s.Damaged() {
		t.Errorf("%d files, damaged: %v", len(s.partitions()), s.Damaged())
	}
}
