package report

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
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
	w.places[a.node] = model.Place{Pool: script, Zone: `javascript:alert(1)`}
	r := w.report(Daily, "")
	text, err := r.Mail("https://center.example")
	w.must(err)
	mail := string(text)
	expecttest.Lacks(t, "the mail", strings.ToLower(mail), "<script", "\u202e", "<img", "<link", "src=", "@import", "url(",
		"class=")
	expecttest.Has(t, "the mail", mail, "Partial: counted up to 2026-11-20 12:00 UTC", "25.00 leftovers for a hundred",
		`style="`)
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(mail, -1)
	for _, link := range links {
		if !strings.HasPrefix(link[1], "https://center.example/") && !strings.HasPrefix(link[1], "#") {
			t.Errorf("a link to %q", link[1])
		}
	}
	if len(links) < 15 {
		t.Errorf("only %d links", len(links))
	}
	text, err = r.Mail("javascript:alert(1)//")
	w.must(err)
	expecttest.Lacks(t, "the mail", string(text), `href="javascript`)
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
	expecttest.Equal(t, "link", want, r.Links["found"])
	expecttest.Equal(t, "found", 2, r.Faults.Found)
	found, err := w.store.Read(t.Context(), journal.Query{After: 5, Stop: 1, Backward: true, Limit: 100,
		Filter: journal.Filter{journal.Type: {string(event.FaultRaised)}}})
	if err != nil || len(found.Records) != 2 {
		t.Errorf("%v %+v", err, found)
	}
	if len(r.New) != 1 || r.New[0].Severity != finding.Warning || r.New[0].Found != 2 {
		t.Errorf("new are %+v", r.New)
	}
}
