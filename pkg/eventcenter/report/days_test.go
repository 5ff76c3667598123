package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A report outlives its events, a lost or damaged file is computed again from the journal, and a damaged one of an
// earlier day is reported as missing, not treated as empty.
func TestTrimmedDays(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.at(21, 12, 0)
	w.store1(a.raise(newFault("disk", "sdb", finding.Fatal), 0))
	base := w.checkpoint(w.model) // as of the trimmed journal's beginning
	w.at(22, 12, 0)
	w.store1(a.clear("disksda"))
	first := w.report(Daily, "2026-11-20")
	w.at(23, 1, 0)
	w.must(w.keeper.Follow())
	w.must(w.store.Trim(w.Context(), w.store.Bounds().Newest))
	if w.store.Bounds().Oldest < 3 {
		t.Fatal("nothing is trimmed")
	}
	w.open()
	expecttest.Equal(t, "the first day", first, w.report(Daily, "2026-11-20"))
	name := filepath.Join(w.dir, "reports", "2026-11-22.json.gz")
	w.must(os.Remove(name))
	w.open()
	if w.model.Before() <= w.keeper.Stored() {
		t.Error("the lost day is not noticed")
	}
	w.load(strings.NewReader(base.String()))
	want := Faults{OpenBefore: 2, Outcomes: model.Outcomes{Cleared: 1}, Open: 1, NeedsPeople: 1}
	expecttest.Equal(t, "counted again", want, w.report(Daily, "2026-11-22").Faults)
	text, err := os.ReadFile(name)
	w.must(err)
	text[len(text)/2] ^= 0xff
	w.must(os.WriteFile(name, text, 0o600))
	var log bytes.Buffer
	w.logged = &log
	w.load(strings.NewReader(base.String()))
	expecttest.Equal(t, "damaged", want, w.report(Daily, "2026-11-22").Faults)
	expecttest.Has(t, "log", log.String(), "2026-11-22")
	w.at(23, 12, 0)
	w.must(os.WriteFile(filepath.Join(w.dir, "reports", "2026-11-21.json.gz"), text[:10], 0o600))
	if week := w.report(Weekly, "2026-11-22"); week.Missing[len(week.Missing)-1] != "2026-11-21" || !week.Partial {
		t.Errorf("%+v", week.Missing)
	}
	w.must(os.Remove(name))
	w.load(w.checkpoint(model.New()))
	expecttest.Equal(t, "lost events, without a checkpoint", 1, w.report(Daily, "2026-11-21").Lost)
}

// Days that are too old are removed.
func TestKeptDays(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	w.store1(w.agent("n").started())
	w.now = w.now.AddDate(0, 0, keepDays+30)
	w.must(w.keeper.Follow())
	names, err := w.keeper.names()
	w.must(err)
	if len(names) < keepDays || len(names) > keepDays+2 || names[0] <= "2026-11-20" {
		t.Errorf("%d days from %s", len(names), names[0])
	}
}

// A new timezone takes effect with the next day; no day is counted twice, and none is lost.
func TestOtherTimezone(t *testing.T) {
	for _, zone := range []*time.Location{time.FixedZone("A", 14*3600), time.FixedZone("B", -11*3600)} {
		w := newWorld(t, november(20, 13), time.UTC)
		a := w.agent("n")
		w.store1(a.started())
		w.must(w.keeper.Follow())
		w.zone = zone
		w.open()
		total := int64(0)
		for w.now.Before(november(23, 13)) {
			w.pass(time.Hour)
			w.store1(a.started())
			w.must(w.keeper.Follow())
		}
		names, err := w.keeper.names()
		w.must(err)
		events := uint64(0)
		today := w.model.Today(w.now.Add(-behind))
		for _, name := range append(names, today.Name) {
			d, err := w.keeper.day(name, today)
			w.must(err)
			total += d.Nodes["c\x00n"].Time.Available
			events += d.Offset - d.Before
		}
		if total != 72*3600*seconds || events != 73 {
			t.Errorf("%s: %d h, %d events", zone, total/3600/seconds, events)
		}
	}
}

// A day ends before events of that day are applied, by another replica's clock, so that the next day counts them, and
// the center is killed before its next checkpoint. When it starts again, each event is in one day, whether the next day
// is stored or not, and after several midnights too.
func TestKilledAfterMidnight(t *testing.T) {
	for _, test := range []struct{ midnights, today int }{{1, 21}, {1, 22}, {2, 22}} {
		w := newWorld(t, november(20, 12), time.UTC)
		a := w.agent("n")
		w.store1(a.started())
		checkpoint := w.checkpoint(w.model)
		for day := 20; day < 20+test.midnights; day++ {
			w.at(day+1, 0, 1)
			w.must(w.keeper.Follow())
			w.at(day, 23, 59)
			w.store1(a.raise(newFault("disk", fmt.Sprint(day), finding.Fatal), 0))
		}
		w.at(test.today, 1, 0)
		w.must(w.keeper.Follow())
		w.load(checkpoint)
		found, offset := 0, uint64(0)
		for day := 20; day <= test.today; day++ {
			r := w.report(Daily, fmt.Sprint("2026-11-", day))
			if r.Before != offset || r.Lost > 0 {
				t.Errorf("%+v: day %d begins after %d, want %d; lost %d", test, day, r.Before, offset, r.Lost)
			}
			found, offset = found+r.Faults.Found, r.Offset
		}
		if found != test.midnights || offset != uint64(test.midnights)+1 {
			t.Errorf("%+v: %d found up to %d", test, found, offset)
		}
	}
}

// A replica ends no day while it is cut off: events of others may be missing. It ends the day when it has them.
func TestCutOff(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.started())
	cut := errors.New("cut off")
	w.keeper.Ready = func() error { return cut }
	w.at(21, 0, 1)
	if r := w.report(Daily, "2026-11-20"); !r.Partial || !r.Through.Equal(november(20, 12)) {
		t.Errorf("partial %t through %s", r.Partial, r.Through)
	}
	w.at(20, 23, 59)
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	cut = nil
	w.at(21, 0, 2)
	if r := w.report(Daily, "2026-11-20"); r.Partial || r.Faults.Found != 1 {
		t.Errorf("partial %t, %d found", r.Partial, r.Faults.Found)
	}
}

// A stored day is read back unchanged, also without nodes; other files are rejected.
func TestDayFile(t *testing.T) {
	w := newWorld(t, november(20, 6), time.UTC)
	for _, name := range []string{"n", `a "quoted" <node>`, "m"} {
		a := w.agent("n" + name[:1])
		w.store1(a.started())
		w.store1(a.raise(newFault("disk", name, finding.Fatal), 10*time.Second))
	}
	w.report(Daily, "today")
	jsonOf := func(d *dayFile) string {
		text, err := json.Marshal(d)
		w.must(err)
		return string(text)
	}
	file := filepath.Join(t.TempDir(), "day")
	for _, day := range []model.Day{*w.model.Today(w.now), {Nodes: map[string]*model.NodeDay{}}} {
		d := &dayFile{version, "j", day}
		w.must(save(file, d))
		read, err := load(file)
		w.must(err)
		expecttest.Equal(t, "read back", jsonOf(d), jsonOf(read))
	}
	for _, text := range []string{"", "null", "[]", `{"version":1}`, `{"version":1,"nodes":null}`,
		`{"version":1,"nodes":{"a":null}}`, `{"version":1,"nodes":{"a":{}}`, `{"version":"x","nodes":{}}`, `{"version":2,"nodes":{}}`} {
		out, err := os.Create(file)
		w.must(err)
		packed := gzip.NewWriter(out)
		_, err = packed.Write([]byte(`{"name":"2026-11-20","faults":null}` + text))
		w.must(err)
		w.must(packed.Close())
		w.must(out.Close())
		if d, err := load(file); err == nil {
			t.Errorf("%s is read as %+v", text, d)
		}
	}
}

// A day's file of 2026-11-20, written before the model counted, yields the same report as then. The day after continues
// it, and names the events that no model counted.
func TestOldVersion(t *testing.T) {
	w := newWorld(t, november(21, 6), time.UTC)
	a := w.agent("other")
	for range 13 {
		w.store1(a.started())
	}
	id := w.store.Bounds().Journal
	w.must(Adopt("testdata/day-1.json.gz", filepath.Join(w.dir, "reports", "2026-11-20.json.gz"), id))
	checkpoint, err := os.ReadFile("testdata/model-1.json")
	w.must(err)
	text, err := os.ReadFile("testdata/report-1.json")
	w.must(err)
	var want Report
	w.must(json.Unmarshal(text, &want))
	for _, lost := range []uint64{0, 2} {
		w.load(strings.NewReader(strings.Replace(string(checkpoint), `"journal":"j","offset":"11"`,
			fmt.Sprintf(`"journal":%q,"offset":"%d"`, id, 11+lost), 1)))
		expecttest.Equal(t, "the report of then", want, w.report(Daily, "2026-11-20"))
		r := w.report(Daily, "today")
		if f := r.Faults; f.OpenBefore != 3 || f.Open != 3 || f.Owned != 1 || f.Muted != 1 {
			t.Errorf("%+v", f)
		}
		expecttest.Equal(t, "lost", lost, r.Lost)
		expecttest.Equal(t, "before", 11, r.Before)
	}
}
