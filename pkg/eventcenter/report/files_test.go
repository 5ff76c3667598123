package report

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
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
