package report

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A stored day is read back unchanged, also without nodes; other files are rejected.
func TestDayFile(t *testing.T) {
	w := newWorld(t, november(20, 6), time.UTC)
	for _, name := range []string{"n", `a "quoted" <node>`, "m"} {
		a := w.agent("n" + name[:1])
		w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
		w.store1(a.raise(newFault("disk", name, finding.Fatal), 10*time.Second))
	}
	w.report(Daily, "today")
	file := filepath.Join(t.TempDir(), "day")
	for _, d := range []*dayFile{{version, "j", *w.model.Today(w.now)}, {version, "j", model.Day{Nodes: map[string]*model.NodeDay{}}}} {
		w.must(save(file, d))
		read, err := load(file)
		w.must(err)
		want, err := json.Marshal(d)
		w.must(err)
		got, err := json.Marshal(read)
		w.must(err)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Error(diff)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"version":1}`, `{"version":1,"nodes":null}`, `{"version":1,"nodes":{"a":null}}`,
		`{"version":1,"nodes":{"a":{}}`, `{"version":"x","nodes":{}}`, `{"version":2,"nodes":{}}`} {
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

// A day's file of 2026-11-20, written before the model counted, yields the same report as then. The day after continues it, and
// names the events that no model counted.
func TestOldVersion(t *testing.T) {
	w := newWorld(t, november(21, 6), time.UTC)
	a := w.agent("other")
	for range 13 {
		w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
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
		if diff := cmp.Diff(want, w.report(Daily, "2026-11-20")); diff != "" {
			t.Error(diff)
		}
		r := w.report(Daily, "today")
		if f := r.Faults; f.OpenBefore != 3 || f.Open != 3 || f.Owned != 1 || f.Muted != 1 || r.Lost != lost || r.Before != 11 {
			t.Errorf("%+v, %d lost", f, r.Lost)
		}
	}
}
