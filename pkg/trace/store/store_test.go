package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

var now = time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, 8)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func act(uid string, outcome verdict.Outcome, at time.Time) follow.Act {
	a := follow.Act{Timeline: record.Timeline{Act: record.Creation, UID: uid, Namespace: "default", Name: "n-" + uid, Node: "node"}}
	a.Timeline.Set(record.Created, record.Mark{Source: record.Own, Arrival: now.Add(-time.Hour)})
	if outcome != verdict.Open {
		a.Verdict, a.JudgedAt = verdict.Verdict{Outcome: outcome}, at
	}
	if outcome == verdict.Missed {
		a.First = reason.Result{Reason: "SchedulerSlow", Class: reason.System}
		a.Final = a.First
	}
	return a
}

// The process ends between storing the verdict and removing the open act: after a restart there is exactly one verdict.
func TestKilledBetween(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Save(t.Context(), follow.Batch{Alive: now, Open: []follow.Act{act("a", verdict.Open, now), act("b", verdict.Open, now)}}); err != nil {
		t.Fatal(err)
	}
	judged := act("a", verdict.Delivered, now)
	if err := s.saveDays(t.Context(), []follow.Act{judged}, insertAct); err != nil { // and no more of the batch
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	defer s.Close()
	acts, alive, err := s.Load(t.Context()) // never before the first run, which is now
	if err != nil || alive.IsZero() || len(acts) != 1 || acts[0].Timeline.UID != "b" {
		t.Fatalf("%+v, %v, %v", acts, alive, err)
	}
	if err := s.Save(t.Context(), follow.Batch{Judged: []follow.Act{judged, judged}, Finished: []follow.Key{judged.Key()}}); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Find(t.Context(), "", "default", "n-a"); err != nil || len(rows) != 1 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// The first run is killed before it saves anything: the next one judges acts that began in the first. A first run
// continues no other.
func TestKilledBeforeTheFirstSave(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, since, err := s.Load(t.Context()); err != nil || !since.IsZero() {
		t.Errorf("the first run: %v, %v", since, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	s = open(t, dir)
	defer s.Close()
	if _, since, err := s.Load(t.Context()); err != nil || since.IsZero() || since.After(before) {
		t.Errorf("the second run: %v, %v", since, err)
	}
}

// An earlier version stored times without quotes.
func TestTimeOfAnEarlierVersion(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	if _, err := s.open.ExecContext(t.Context(), `UPDATE meta SET value = '2026-03-01T00:00:30Z' WHERE name = 'first'`); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	if err := s.Note(t.Context(), First, &first); err != nil || !first.Equal(now) {
		t.Errorf("%v %v", first, err)
	}
}

func TestCountFindExpire(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	yesterday := now.Add(-time.Minute) // another file
	miss := act("m", verdict.Missed, yesterday)
	if err := s.Save(t.Context(), follow.Batch{Judged: []follow.Act{act("d", verdict.Delivered, now), miss}, Open: []follow.Act{miss}}); err != nil {
		t.Fatal(err)
	}
	miss.Final = reason.Result{Reason: "CapacityExhausted", Class: reason.System}
	if err := s.Save(t.Context(), follow.Batch{Refined: []follow.Act{miss}, Finished: []follow.Key{miss.Key()}}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Find(t.Context(), "m", "", "")
	if err != nil || len(rows) != 1 || rows[0].First != "SchedulerSlow" || rows[0].Reason != "CapacityExhausted" || rows[0].Evidence == nil {
		t.Errorf("%+v, %v", rows, err)
	}
	for window, want := range map[time.Duration]int{10 * time.Second: 1, 5 * time.Minute: 2} {
		counts, err := s.Count(t.Context(), now.Add(time.Second), window, Filter{Namespace: "default", Nodes: []string{"x", "node"}})
		if err != nil || len(counts) != want {
			t.Errorf("%v: %+v, %v", window, counts, err)
		}
	}
	if counts, err := s.Count(t.Context(), now, time.Hour, Filter{Nodes: []string{"other"}}); err != nil || len(counts) != 0 {
		t.Errorf("%+v, %v", counts, err)
	}
	if acts, _, err := s.Load(t.Context()); err != nil || len(acts) != 0 {
		t.Errorf("%+v, %v", acts, err)
	}
	if err := s.Expire(t.Context(), now.AddDate(0, 0, 8)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "2026-02-28.db")); !os.IsNotExist(err) {
		t.Errorf("a day that is too old: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "2026-03-01.db")); err != nil {
		t.Error(err)
	}
}

func TestOneProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	if second, err := Open(t.Context(), dir, 8); err == nil {
		second.Close()
		t.Error("a second process opened it")
	}
}

// An indicator has no value below 20 samples, and its counts add up.
func TestIndicators(t *testing.T) {
	counts := []sli.Count{{Act: record.Creation, Outcome: verdict.Delivered, N: 18}, {Act: record.Creation, Outcome: verdict.Missed, Class: reason.System, Reason: "NodeLost", N: 1},
		{Act: record.Creation, Outcome: verdict.Missed, Class: reason.User, Reason: "InitSlow", N: 3}, {Act: record.Creation, Outcome: verdict.Excluded, N: 5},
		{Act: record.Creation, Outcome: verdict.Unknown, N: 2}}
	i := sli.Add(counts)[0]
	if i.Success != nil || i.WithUser == nil || i.Samples != 19 || i.Total != i.Delivered+i.Missed+i.Excluded+i.Unknown || i.Missed != i.System+i.User {
		t.Errorf("%+v", i)
	}
	counts[0].N = 19
	if i := sli.Add(counts)[0]; i.Success == nil || *i.Success != 0.95 {
		t.Errorf("%+v", i)
	}
}

// The directory may be relative: by default, it is in the working directory.
func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	s, err := Open(t.Context(), "tracecenter-data", 30)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
