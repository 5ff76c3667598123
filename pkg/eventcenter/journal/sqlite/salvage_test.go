package sqlite

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// A replica continues with its salvaged copy.
func TestSalvagedCopy(t *testing.T) {
	const id = "00000000-0000-0000-0000-000000000000"
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "salvaged")
	s := openTest(t, dir, Options{Copy: id})
	for day := range uint64(2) {
		r := journal.Record{Offset: day + 1, Received: time.Unix(int64(day)*86400, 0), Event: of("a", day+1)}
		must(t, s.Put(t.Context(), []journal.Record{r}, Position{Sequence: day + 1}))
	}
	must(t, s.Close())
	_, err := Salvage(t.Context(), dir, to, slog.New(slog.DiscardHandler))
	must(t, err)
	s = openTest(t, to, Options{Copy: id})
	if _, err := s.Position(t.Context()); err != nil {
		t.Error(err)
	}
	journaltest.Expect(t, s, "1 a/1", "2 a/2")
}
