package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Agents' text stays text in an email, which is self-contained: no script, no style sheet, no picture. All links lead
// to the center.
func TestMail(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent(`n"><script>x`)
	const script = `<script>alert(1)</script>`
	f := newFault(`c"'`+script, script, finding.Fatal)
	f.Message, f.Reason = script+"\u202e", script
	a.counts = true
	e := a.raise(f, time.Minute)
	e.Source = "x"
	w.store1(e, a.leftover(event.LeftoverFound, script, script))
	a.pods = 4
	w.store1(a.snapshot())
	w.places[Key{"c", a.node}] = Place{Pool: script, Zone: `javascript:alert(1)`}
	r := w.report(Daily, "")
	text, err := r.Mail("https://center.example")
	w.must(err)
	mail := string(text)
	for _, bad := range []string{"<script", "\u202e", "<img", "<link", "src=", "@import", "url(", "class="} {
		if strings.Contains(strings.ToLower(mail), bad) {
			t.Errorf("the mail has %q", bad)
		}
	}
	for _, want := range []string{"Partial: counted up to 2026-11-20 12:00 UTC", "25.00 leftovers for a hundred", `style="`} {
		if !strings.Contains(mail, want) {
			t.Errorf("no %q in\n%s", want, mail)
		}
	}
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(mail, -1)
	for _, link := range links {
		if !strings.HasPrefix(link[1], "https://center.example/") && !strings.HasPrefix(link[1], "#") {
			t.Errorf("a link to %q", link[1])
		}
	}
	if len(links) < 15 {
		t.Errorf("only %d links", len(links))
	}
	if text, err = r.Mail("javascript:alert(1)//"); err != nil || bytes.Contains(text, []byte(`href="javascript`)) {
		t.Errorf("%v %s", err, text)
	}
}

// Every number in today's report links to a list with as many events.
func TestLinks(t *testing.T) {
	w := newWorld(t, november(20, 12), time.UTC)
	a := w.agent("n")
	w.store1(a.raise(newFault("disk", "sda", finding.Fatal), 0))
	w.at(21, 12, 0)
	w.store1(a.raise(newFault("disk", "sdb", finding.Warning), 0), a.raise(newFault("disk", "sdc", finding.Warning), 0), a.clear("disksda"))
	w.at(22, 12, 0)
	w.store1(a.raise(newFault("net", "eth0", finding.Fatal), 0))
	r := w.report(Daily, "2026-11-21")
	want := "/events?after=1&before=5&type=io.github.nodeagent.fault.raised.v1"
	if r.Links["found"] != want || r.Faults.Found != 2 {
		t.Errorf("%s", r.Links["found"])
	}
	found, err := w.store.Read(t.Context(), journal.Query{After: 5, Stop: 1, Backward: true, Limit: 100,
		Filter: journal.Filter{journal.Type: {string(event.FaultRaised)}}})
	if err != nil || len(found.Records) != 2 {
		t.Errorf("%v %+v", err, found)
	}
	if len(r.New) != 1 || r.New[0].Severity != finding.Warning || r.New[0].Found != 2 {
		t.Errorf("new are %+v", r.New)
	}
}

// BenchmarkDay makes the report of a day of 10,000 nodes, with 30 stored days.
func BenchmarkDay(b *testing.B) {
	w := newWorld(b, november(1, 0), time.UTC)
	d := newDay(w.now, time.UTC, w.store.Bounds().Journal, 0)
	w.keeper.fold.Day = d
	for day := range 30 {
		for i := range 10_000 {
			key := fmt.Sprintf("c\x00node-%05d", i)
			n := d.Nodes[key]
			if n == nil {
				n = &Node{Cluster: "c", Name: key[2:], Since: d.From, Present: true,
					Place: Place{Pool: fmt.Sprint("pool", i%20), Zone: fmt.Sprint("zone", i%3)}}
				d.Nodes[key] = n
			}
			n.Stream, n.AsOf = "s", uint64(day*10) // from a snapshot
			for k := range 3 {                     // including their ends, 60,000 events a day
				f := newFault(fmt.Sprint("check", (i+k+day)%40), "x", finding.Warning)
				f.RaisedAt, f.ObservedAt = d.From, d.From.Add(-time.Minute)
				e := said{}
				e.Data.Fault = f
				d.fault(n, event.FaultRaised, e, stamp{Stream: "s", Sequence: uint64(day*10 + k + 1), RaisedAt: f.RaisedAt})
				if k > 0 || i%50 > 0 {
					d.fault(n, event.FaultCleared, e, stamp{Stream: "s", Sequence: uint64(day*10 + k + 5), RaisedAt: f.RaisedAt})
				}
			}
		}
		w.must(w.keeper.fold.Advance(d.To))
		d = w.keeper.fold.Day
	}
	w.now = d.From.Add(time.Hour)
	for b.Loop() {
		r, err := w.keeper.Report(b.Context(), Daily, "2026-11-15")
		if err != nil || r.Availability.Nodes != 10_000 || r.Faults.Found != 30_000 {
			b.Fatal(err, r.Faults)
		}
	}
}
