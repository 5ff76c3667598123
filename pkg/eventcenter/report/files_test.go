package report

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A day that is written node by node is the text that it is as a whole, also without nodes, and is read as it was.
func TestDayByNodes(t *testing.T) {
	w := newWorld(t, november(20, 6), time.UTC)
	for _, name := range []string{"n", `a "quoted" <node>`, "m"} {
		a := w.agent("n" + name[:1])
		w.store1(a.event(event.AgentStarted, finding.Info, event.Agent{}))
		w.store1(a.raise(newFault("disk", name, finding.Fatal), 10*time.Second))
	}
	w.report(Daily, "today")
	full := w.keeper.fold.Day
	for _, d := range []*Day{full, newDay(november(20, 6), time.UTC, "j", 3)} {
		var out bytes.Buffer
		w.must(encodeDay(&out, d))
		whole, err := json.Marshal(d)
		w.must(err)
		if diff := cmp.Diff(string(whole)+"\n", out.String()); diff != "" {
			t.Error(diff)
		}
		read, err := decodeDay(json.NewDecoder(&out))
		w.must(err)
		again, err := json.Marshal(read)
		w.must(err)
		if diff := cmp.Diff(string(whole), string(again)); diff != "" {
			t.Error(diff)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"nodes":null}`, `{"nodes":{"a":null}}`, `{"nodes":{"a":{}}`, `{"version":"x","nodes":{}}`} {
		if d, err := decodeDay(json.NewDecoder(bytes.NewBufferString(text))); err == nil {
			t.Errorf("%s is read as %+v", text, d)
		}
	}
}
