package sqlite

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// A file without a readable event does not keep the files after it.
func TestUnreadableIsTrimmed(t *testing.T) {
	c := journaltest.NewClock()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Now: c.Now})
	must(t, err)
	defer s.Close()
	for day := range uint64(3) {
		journaltest.Append(t, s, journaltest.Of("a", day+1))
		c.Add(24 * time.Hour)
	}
	s.parts[0].last, s.parts[0].newest = 0, time.Time{}
	for age, want := range map[time.Duration]uint64{72 * time.Hour: 0, 47 * time.Hour: 1} {
		if got := s.Expired(journal.Limits{Age: age}); got != want {
			t.Errorf("older than %s: trim up to %d, want %d", age, got, want)
		}
	}
}

// A clock that jumps ahead by more than events are kept costs one day an hour at most, none after a start, and all old ones
// only if the disk is full. When it is set right, no other day goes, and the days after it are dropped when it is their
// time.
func TestClockAhead(t *testing.T) {
	const keep, jump = 30 * 24 * time.Hour, 400 * 24 * time.Hour
	c := journaltest.NewClock()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Now: c.Now})
	must(t, err)
	defer s.Close()
	expired := func(when string, want uint64) {
		t.Helper()
		if got := s.Expired(journal.Limits{Age: keep}); got != want {
			t.Errorf("%s: trim up to %d, want %d", when, got, want)
		}
	}
	known := func(when string) { // a retry of the first event
		t.Helper()
		if got := journaltest.Append(t, s, journaltest.Of("a", 1)); got.Duplicates != 1 {
			t.Errorf("%s: %+v", when, got)
		}
	}
	journaltest.Append(t, s, journaltest.Of("a", 1), journaltest.Of("z", 1))
	for day := range uint64(4) {
		c.Add(24 * time.Hour)
		journaltest.Append(t, s, journaltest.Of("b", day+1))
	}
	c.Add(jump)
	s.fullFrom = c.Now()
	expired("the disk is full", 5)
	s.fullFrom = time.Time{}
	journaltest.Append(t, s, journaltest.Of("b", 5))
	known("the clock is ahead")
	expired("the clock is ahead", 2)
	must(t, s.Trim(t.Context(), 2))
	expired("a day was dropped just now", 0)
	if got := s.Expired(journal.Limits{Bytes: 1}); got != 6 {
		t.Errorf("all but the newest are too large: trim up to %d, want 6", got)
	}
	c.Add(time.Hour)
	expired("an hour later", 3)
	c.Add(-jump)
	journaltest.Append(t, s, journaltest.Of("b", 6))
	expired("the clock is right again", 0)
	for range 6 {
		c.Add(8 * 24 * time.Hour)
		journaltest.Append(t, s, journaltest.Of("c", 1+uint64(c.Now().Unix())))
		if upTo := s.Expired(journal.Limits{Age: keep}); upTo > 0 {
			must(t, s.Trim(t.Context(), upTo))
		}
		c.Add(24 * time.Hour)
	}
	if oldest := s.Bounds().Oldest; oldest < 5 {
		t.Errorf("54 days later the oldest is %d", oldest)
	}
}
