package sqlite

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

// The check reads each event, even large ones.
func TestCheckOfLargeEvents(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	for sequence := range uint64(250) {
		journaltest.Append(t, s, large(sequence+1, pageBytes/100))
	}
	must(t, s.Close())
	name := filepath.Join(dir, partitionName(1))
	data, err := os.ReadFile(name)
	if err != nil || bytes.Count(data, []byte(`"n":240,`)) != 1 {
		t.Fatal(err, "the event is not there")
	}
	must(t, os.WriteFile(name, bytes.Replace(data, []byte(`"n":240,`), []byte(`"N":240,`), 1), 0o600))
	gaps, err := openTest(t, dir, Options{ReadOnly: true}).Check(t.Context(), WithoutRest)
	if err != nil || len(gaps) != 1 || gaps[0].From != 240 || gaps[0].To != 240 {
		t.Errorf("gaps %v, %v; the checksum of 240 is wrong", gaps, err)
	}
}

// many returns events of a node, starting with a sequence.
func many(from, count uint64) (events []journal.Event) {
	for i := range count {
		events = append(events, of("a", from+i))
	}
	return events
}

// The check pauses after each step, and blocks no other operation while it does.
func TestCheckRests(t *testing.T) {
	const ofADay = 2*checkedAtOnce + 1
	c := journaltest.NewClock()
	s := openTest(t, t.TempDir(), Options{Now: c.Now})
	for day := range uint64(3) {
		journaltest.Append(t, s, many(day*ofADay+1, ofADay)...)
		c.Add(24 * time.Hour)
	}
	var rests []time.Duration
	if _, err := s.Check(t.Context(), func(worked time.Duration) {
		if rests = append(rests, worked); len(rests) > 1 {
			return
		}
		journaltest.Append(t, s, of("a", 3*ofADay+1)) // on the next day, so that the days before can be sealed
		if err := s.Seal(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Trim(t.Context(), ofADay); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Error(err)
	}
	if steps := 1 + 2*3; len(rests) != steps { // one of the first file, which is then trimmed
		t.Errorf("%d rests, want %d", len(rests), steps)
	}
	if slices.ContainsFunc(rests, func(worked time.Duration) bool { return worked <= 0 || worked > time.Minute }) {
		t.Errorf("worked %v", rests)
	}
	if gaps := s.Health().Gaps; len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
}

// A check whose context ends during a pause stops reading.
func TestCheckEnds(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	journaltest.Append(t, s, many(1, 2*checkedAtOnce)...)
	ctx, cancel := context.WithCancel(t.Context())
	rests := 0
	if _, err := s.Check(ctx, func(time.Duration) { rests++; cancel() }); err == nil || rests != 1 {
		t.Errorf("%v after %d rests", err, rests)
	}
}
