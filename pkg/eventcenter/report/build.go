package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// sum adds up days, from the last to the first, so that only one more is in memory at a time. It has what is there at the
// end of the last one.
type sum struct {
	Day
	days int
}

// add adds the day before those already added. The last day counts up to through: its end, or now.
func (s *sum) add(d *Day, through time.Time) {
	last := s.days == 0
	if s.days++; last {
		s.Day = Day{Timezone: d.Timezone, To: d.To, Offset: d.Offset, Complete: d.Complete, Through: d.To,
			Nodes: map[string]*Node{}, Find: durations{}, Clear: durations{}}
		if !d.Complete {
			s.Through = through
		}
	}
	s.From, s.Before, s.Lost = d.From, d.Before, s.Lost+d.Lost
	s.Find.with(d.Find)
	s.Clear.with(d.Clear)
	for key, n := range d.Nodes {
		t := s.Nodes[key]
		if t == nil {
			t = &Node{Cluster: n.Cluster, Name: n.Name, Place: n.Place}
			s.Nodes[key] = t
		}
		t.Place, t.Time = cmp.Or(t.Place, n.Place), t.Time.add(n.Time)
		t.Joined, t.Removed = t.Joined+n.Joined, t.Removed+n.Removed
		t.Pods.Ended, t.Pods.Reports = t.Pods.Ended+n.Pods.Ended, t.Pods.Reports || n.Pods.Reports
		for name, c := range n.Faults {
			o := counter(&t.Faults, name, Outcomes{})
			*o = o.add(*c)
		}
		for kind, c := range n.Leftovers {
			k := counter(&t.Leftovers, kind, LeftoverKind{})
			k.Found, k.Released, k.Gone = k.Found+c.Found, k.Released+c.Released, k.Gone+c.Gone
		}
		if last {
			t.Open, t.Muted, t.Left = n.Open, n.Muted, n.Left
		}
	}
}

// place is a pool or zone.
type place struct {
	PlaceRow
	mean
}

// builder makes a report from the sum of its days.
type builder struct {
	*sum
	r            Report
	faults       map[counted]*FaultRow
	kinds        map[string]*KindRow
	rated        map[string]int // leftovers by kind on nodes whose agents count pods
	pools, zones map[string]*place
	fleet        mean
}

// report returns the report. before holds the heads of the previous period.
func (s *sum) report(p Period, name string, before []head) Report {
	b := &builder{sum: s, rated: map[string]int{}, r: Report{Period: p, Name: name, Timezone: s.Timezone,
		From: s.From, To: s.To, Through: s.Through, Partial: !s.Complete, Lost: s.Lost, Before: s.Before, Offset: s.Offset, NeedsPeople: []Need{},
		Find: s.Find.quantiles(), Clear: s.Clear.quantiles(), Worst: []NodeRow{}, New: []FaultRow{}, ByFault: []FaultRow{}}}
	for _, n := range s.Nodes {
		b.node(n)
	}
	r := &b.r
	r.Faults = r.Faults.balanced()
	r.Availability.Nodes, r.Availability.Share = b.fleet.nodes, b.fleet.share()
	r.ByPool, r.ByZone = places(b.pools, "pool"), places(b.zones, "zone")
	known := map[counted]bool{}
	for _, h := range before {
		r.Earlier = h.Name
		for _, name := range h.Faults {
			known[name] = true
		}
	}
	for _, f := range b.faults {
		f.Faults = f.Faults.balanced()
		f.Href = b.events(event.FaultRaised, "check", f.Check, "reason", f.Reason, "severity", string(f.Severity))
		r.ByFault = append(r.ByFault, *f)
	}
	slices.SortFunc(r.ByFault, func(a, b FaultRow) int {
		return cmp.Or(a.Severity.Compare(b.Severity), cmp.Compare(b.Found, a.Found),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Detector, b.Detector))
	})
	for _, row := range r.ByFault {
		if row.Found > 0 && !known[counted(row.Name)] {
			r.New = append(r.New, row)
		}
	}
	slices.SortFunc(r.NeedsPeople, func(a, b Need) int {
		return cmp.Or(a.Found.Compare(b.Found), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Subject.Name, b.Subject.Name))
	})
	r.NeedsPeople = r.NeedsPeople[:min(maxListed, len(r.NeedsPeople))]
	slices.SortFunc(r.Worst, func(a, b NodeRow) int { // the longest unavailable first, then those with the most faults
		return cmp.Or(cmp.Compare(b.Time.Unavailable, a.Time.Unavailable), cmp.Compare(b.Found, a.Found),
			cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	})
	r.Worst = r.Worst[:min(maxWorst, len(r.Worst))]
	b.leftovers()
	b.links()
	return *r
}

func (b *builder) node(n *Node) {
	r := &b.r
	var all Faults
	here := map[*FaultRow]bool{}
	add := func(name counted, some Faults) {
		f := counter(&b.faults, name, FaultRow{Name: Name(name)})
		f.Faults, all, here[f] = f.Faults.add(some), all.add(some), true
	}
	for name, c := range n.Faults {
		add(name, Faults{Outcomes: *c})
	}
	for key, o := range n.Open {
		add(o.Name, b.open(n, key, o))
	}
	for f := range here {
		f.Nodes++
	}
	for kind, c := range n.Leftovers {
		k := counter(&b.kinds, kind, KindRow{Kind: kind})
		k.Found, k.Released, k.Gone = k.Found+c.Found, k.Released+c.Released, k.Gone+c.Gone
		if n.Pods.Reports {
			b.rated[kind] += c.Found
		}
	}
	for _, kind := range n.Left {
		counter(&b.kinds, kind, KindRow{Kind: kind}).Open++
	}
	if n.Pods.Reports {
		r.Leftovers.Counting++
		r.Leftovers.PodsEnded += n.Pods.Ended
	}
	r.Faults = r.Faults.add(all)
	b.fleet.add(n.Time)
	a := &r.Availability
	a.Joined, a.Removed = a.Joined+n.Joined, a.Removed+n.Removed
	a.MaintenanceSeconds += n.Time.Maintenance / 1000
	addPlace(&b.pools, n.Pool, n, all)
	addPlace(&b.zones, n.Zone, n, all)
	if n.Time.Unavailable > 0 || all.Found > 0 {
		r.Worst = append(r.Worst, NodeRow{Cluster: n.Cluster, Node: n.Name, Place: n.Place, Time: n.Time,
			Share: (&mean{}).add(n.Time).share(), Found: all.Found, Href: nodeHref(n.Cluster, n.Name)})
	}
}

// open counts a fault still active at the end.
func (b *builder) open(n *Node, key string, o *Active) (one Faults) {
	one.Open = 1
	switch {
	case b.Through.Before(n.Muted[key]):
		one.Muted = 1
	case o.Owner != "":
		one.Owned = 1
	case o.Severity == finding.Info:
		one.Info = 1
	default:
		one.NeedsPeople = 1
		b.r.NeedsPeople = append(b.r.NeedsPeople, Need{Cluster: n.Cluster, Node: n.Name, Place: n.Place, About: o.About,
			Seconds: int64(b.Through.Sub(o.Found) / time.Second), Href: nodeHref(n.Cluster, n.Name)})
	}
	return one
}

func (f Faults) add(g Faults) Faults {
	return Faults{f.OpenBefore + g.OpenBefore, f.Outcomes.add(g.Outcomes), f.Open + g.Open, f.NeedsPeople + g.NeedsPeople,
		f.Owned + g.Owned, f.Muted + g.Muted, f.Info + g.Info}
}

// balanced derives the number of faults active before from those that began and ended.
func (f Faults) balanced() Faults {
	f.OpenBefore = f.Open + f.OneShot + f.Late + f.Cleared + f.Repaired + f.Removed - f.Found
	return f
}

func addPlace(all *map[string]*place, name string, n *Node, f Faults) {
	p := counter(all, n.Cluster+"\x00"+name, place{PlaceRow: PlaceRow{Cluster: n.Cluster, Name: name}})
	p.Nodes++
	p.Faults = p.Faults.add(f)
	p.mean.add(n.Time)
}

func places(all map[string]*place, field string) []PlaceRow {
	rows := []PlaceRow{}
	for _, p := range all {
		p.Faults, p.Share = p.Faults.balanced(), p.share()
		p.Href = "/agents?" + url.Values{"cluster": {p.Cluster}, field: {p.Name}}.Encode()
		rows = append(rows, p.PlaceRow)
	}
	slices.SortFunc(rows, func(a, b PlaceRow) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	return rows
}

func (b *builder) leftovers() {
	l := &b.r.Leftovers
	l.Kinds = []KindRow{}
	all := 0
	hundred := func(found int) *float64 {
		if l.PodsEnded == 0 {
			return nil
		}
		rate := 100 * float64(found) / float64(l.PodsEnded)
		return &rate
	}
	for _, name := range slices.Sorted(maps.Keys(b.kinds)) {
		k := b.kinds[name]
		all += b.rated[name]
		k.PerHundred, k.Href = hundred(b.rated[name]), b.events(event.LeftoverFound)
		l.Kinds = append(l.Kinds, *k)
	}
	l.PerHundred = hundred(all)
}

// links adds the addresses of the lists behind the fleet's numbers.
func (b *builder) links() {
	b.r.Links = map[string]string{
		"found": b.events(event.FaultRaised), "ended": b.events(event.FaultCleared),
		"repaired": b.events(event.ActionSucceeded), "removed": b.events(event.NodeRemoved),
		"leftovers": b.events(event.LeftoverFound), "open": "/faults", "lost": b.events(event.NodeLost),
		"blind": b.events(event.NodeBlind), "nodes": "/agents", "said": b.events(event.OperatorAcknowledged),
		"maintenance": b.events(event.OperatorMaintenance), "muted": b.events(event.OperatorMuted),
	}
}

// events returns the address of the period's events of a type, with the given field values.
func (b *builder) events(t event.Type, fields ...string) string {
	q := url.Values{"type": {string(t)}, "after": {strconv.FormatUint(b.Before, 10)},
		"before": {strconv.FormatUint(b.Offset+1, 10)}}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] != other {
			q.Set(fields[i], fields[i+1])
		}
	}
	return "/events?" + q.Encode()
}

func nodeHref(cluster, node string) string {
	return "/nodes/" + url.PathEscape(cluster) + "/" + url.PathEscape(node)
}

// mean is the mean of the nodes' shares.
type mean struct {
	nodes int
	sum   Share
}

func (m *mean) add(t Time) *mean {
	if whole := float64(t.counted()); whole > 0 {
		m.nodes++
		m.sum.Available += float64(t.Available) / whole
		m.sum.Unavailable += float64(t.Unavailable) / whole
		m.sum.Unknown += float64(t.Unknown) / whole
	}
	return m
}

func (m *mean) share() Share {
	if m.nodes == 0 {
		return Share{}
	}
	n := float64(m.nodes)
	return Share{m.sum.Available / n, m.sum.Unavailable / n, m.sum.Unknown / n}
}

func (d durations) with(o durations) {
	for length, count := range o {
		d[length] += count
	}
}

// quantiles uses the nearest rank: the smallest value that covers the percentage.
func (d durations) quantiles() (q Quantiles) {
	for _, count := range d {
		q.Count += count
	}
	rank := func(percent int) int64 {
		want, seen := (q.Count*percent+99)/100, 0
		for _, length := range slices.Sorted(maps.Keys(d)) {
			if seen += d[length]; seen >= want {
				return length
			}
		}
		return 0
	}
	if q.Count > 0 {
		q.Median, q.P90 = rank(50), rank(90)
	}
	return q
}

// Nodes returns a number of nodes for people.
func Nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// Length returns a duration for people.
func Length(seconds int64) string {
	switch {
	case seconds < 60:
		return fmt.Sprintf("%d s", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%d min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%d h %d min", seconds/3600, seconds/60%60)
	}
	return fmt.Sprintf("%d d %d h", seconds/86400, seconds/3600%24)
}
