package sqlite

import (
	"path/filepath"
	"testing"

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
