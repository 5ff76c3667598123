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

// newBuilder begins a report. Days are added from the last to the first, so that only one is in memory at a time.
func newBuilder(p Period, name string) *builder {
	return &builder{r: &Report{Period: p, Name: name, NeedsPeople: []Need{}, New: []FaultRow{}}, faults: map[string]*FaultRow{},
		nodes: map[Key]*NodeRow{}, kinds: map[string]*KindRow{}, counted: map[string]int{}, counting: map[Key]bool{},
		touched: map[string]map[Key]bool{}, byNode: map[Key]*Faults{}}
}

// add adds the day before those already added. The last day counts up to through: its end, or now.
func (b *builder) add(d *Day, through time.Time) {
	r, last := b.r, b.days == 0
	if b.days++; last {
		r.Timezone, r.To, r.Through, r.Offset, r.Partial = d.Timezone, d.To, d.To, d.Offset, !d.Complete
		if r.Partial {
			r.Through = through
		}
		b.through = r.Through
	}
	r.From, r.Before = d.From, d.Before
	r.Lost += d.Lost
	b.find, b.clear = b.find.with(d.Find), b.clear.with(d.Clear)
	for _, n := range d.Nodes {
		b.node(d, n, last)
	}
}

// end returns the report. before holds the heads of the previous period.
func (b *builder) end(before []head) Report {
	r := b.r
	r.Find, r.Clear = b.find.quantiles(), b.clear.quantiles()
	b.finish()
	known := map[string]bool{}
	for _, h := range before {
		r.Earlier = h.Name
		for _, name := range h.Faults {
			known[name] = true
		}
	}
	for _, row := range r.ByFault {
		if row.Found > 0 && !known[nameOf(row.Check, row.Reason, row.Severity, row.Detector)] {
			r.New = append(r.New, row)
		}
	}
	return *r
}

// builder sums up the nodes of days.
type builder struct {
	r        *Report
	through  time.Time
	days     int
	find     durations
	clear    durations
	faults   map[string]*FaultRow
	touched  map[string]map[Key]bool // nodes by fault
	nodes    map[Key]*NodeRow
	byNode   map[Key]*Faults
	kinds    map[string]*KindRow
	counted  map[string]int // leftovers by kind on nodes whose agents count pods
	counting map[Key]bool
}

func (b *builder) node(d *Day, n *Node, last bool) {
	key := Key{n.Cluster, n.Name}
	row, sum := b.nodes[key], b.byNode[key]
	if row == nil {
		row = &NodeRow{Cluster: n.Cluster, Node: n.Name}
		sum = &Faults{}
		b.nodes[key], b.byNode[key] = row, sum
	}
	if row.Place == (Place{}) {
		row.Place = n.Place
	}
	at := d.To
	if last {
		at = b.through
	}
	row.Time = row.Time.add(d.passed(n, at))
	b.r.Availability.Joined += n.Joined
	b.r.Availability.Removed += n.Removed
	for name, c := range n.Faults {
		f := b.fault(name, FaultRow{Check: c.Check, Reason: c.Reason, Severity: c.Severity, Detector: c.Detector}, key)
		f.Outcomes, sum.Outcomes = f.Outcomes.add(c.Outcomes), sum.Outcomes.add(c.Outcomes)
	}
	for kind, c := range n.Leftovers {
		k := b.kind(kind)
		k.Found, k.Released, k.Gone = k.Found+c.Found, k.Released+c.Released, k.Gone+c.Gone
		if n.Pods.Reports {
			b.counted[kind] += c.Found
		}
	}
	if n.Pods.Reports {
		b.counting[key] = true
		b.r.Leftovers.PodsEnded += n.Pods.Ended
	}
	if !last {
		return
	}
	for name, o := range n.Open {
		b.open(n, name, o, key)
	}
	for _, kind := range n.Left {
		b.kind(kind).Open++
	}
}

func (b *builder) fault(name string, row FaultRow, on Key) *FaultRow {
	f := b.faults[name]
	if f == nil {
		f = &row
		b.faults[name], b.touched[name] = f, map[Key]bool{}
	}
	b.touched[name][on] = true
	return f
}

func (b *builder) kind(name string) *KindRow {
	k := b.kinds[name]
	if k == nil {
		k = &KindRow{Kind: name}
		b.kinds[name] = k
	}
	return k
}

// open counts a fault still active at the end.
func (b *builder) open(n *Node, key string, o *Episode, on Key) {
	check, reason, severity, detector := splitName(o.Name)
	var one Faults
	one.Open = 1
	switch {
	case b.through.Before(n.Muted[key]):
		one.Muted = 1
	case o.Owner != "":
		one.Owned = 1
	case o.Severity == finding.Info:
		one.Info = 1
	default:
		one.NeedsPeople = 1
		b.r.NeedsPeople = append(b.r.NeedsPeople, Need{Cluster: n.Cluster, Node: n.Name, Place: n.Place, Check: o.Check,
			Reason: o.Reason, Detector: o.Detector, Severity: o.Severity, Subject: o.Subject, Message: o.Message, Found: o.Found,
			Seconds: int64(b.through.Sub(o.Found) / time.Second), Href: nodeHref(n.Cluster, n.Name)})
	}
	f := b.fault(o.Name, FaultRow{Check: check, Reason: reason, Severity: severity, Detector: detector}, on)
	f.Faults, *b.byNode[on] = f.Faults.add(one), b.byNode[on].add(one)
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

func (b *builder) finish() {
	r := b.r
	pools, zones := map[[2]string]*PlaceRow{}, map[[2]string]*PlaceRow{}
	shares := map[*PlaceRow]*mean{}
	var fleet mean
	for key, row := range b.nodes {
		f := *b.byNode[key]
		r.Faults = r.Faults.add(f)
		row.Found = f.Found
		row.Href = nodeHref(row.Cluster, row.Node)
		fleet.add(row.Time)
		row.Share = (&mean{}).add(row.Time).share()
		r.Availability.MaintenanceSeconds += row.Time.Maintenance / 1000
		for _, p := range []struct {
			rows map[[2]string]*PlaceRow
			name string
		}{{pools, row.Pool}, {zones, row.Zone}} {
			at := [2]string{row.Cluster, p.name}
			if p.rows[at] == nil {
				p.rows[at] = &PlaceRow{Cluster: row.Cluster, Name: p.name}
				shares[p.rows[at]] = &mean{}
			}
			place := p.rows[at]
			place.Nodes++
			place.Faults = place.Faults.add(f)
			shares[place].add(row.Time)
		}
	}
	r.Faults = r.Faults.balanced()
	r.Availability.Nodes, r.Availability.Share = fleet.nodes, fleet.share()
	r.ByPool, r.ByZone = b.places(pools, shares, "pool"), b.places(zones, shares, "zone")
	r.ByFault = []FaultRow{}
	for name, f := range b.faults {
		f.Faults, f.Nodes = f.Faults.balanced(), len(b.touched[name])
		f.Href = b.events(event.FaultRaised, "check", f.Check, "reason", f.Reason, "severity", string(f.Severity))
		r.ByFault = append(r.ByFault, *f)
	}
	slices.SortFunc(r.ByFault, func(a, b FaultRow) int {
		return cmp.Or(a.Severity.Compare(b.Severity), cmp.Compare(b.Found, a.Found),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Detector, b.Detector))
	})
	slices.SortFunc(r.NeedsPeople, func(a, b Need) int {
		return cmp.Or(a.Found.Compare(b.Found), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Subject.Name, b.Subject.Name))
	})
	r.NeedsPeople = r.NeedsPeople[:min(maxListed, len(r.NeedsPeople))]
	b.worst()
	b.leftovers()
	b.links()
}

func (b *builder) places(rows map[[2]string]*PlaceRow, shares map[*PlaceRow]*mean, field string) []PlaceRow {
	all := []PlaceRow{}
	for _, p := range rows {
		p.Faults, p.Share = p.Faults.balanced(), shares[p].share()
		p.Href = "/agents?" + url.Values{"cluster": {p.Cluster}, field: {p.Name}}.Encode()
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b PlaceRow) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// worst lists the nodes with the longest unavailability, then those with the most faults.
func (b *builder) worst() {
	b.r.Worst = []NodeRow{}
	for _, row := range b.nodes {
		if row.Time.Unavailable > 0 || row.Found > 0 {
			b.r.Worst = append(b.r.Worst, *row)
		}
	}
	slices.SortFunc(b.r.Worst, func(a, b NodeRow) int {
		return cmp.Or(cmp.Compare(b.Time.Unavailable, a.Time.Unavailable), cmp.Compare(b.Found, a.Found),
			cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	})
	b.r.Worst = b.r.Worst[:min(maxWorst, len(b.r.Worst))]
}

func (b *builder) leftovers() {
	l := &b.r.Leftovers
	l.Kinds, l.Counting = []KindRow{}, len(b.counting)
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
		all += b.counted[name]
		k.PerHundred = hundred(b.counted[name])
		k.Href = b.events(event.LeftoverFound)
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
	q := url.Values{"type": {string(t)}, "after": {strconv.FormatUint(b.r.Before, 10)},
		"before": {strconv.FormatUint(b.r.Offset+1, 10)}}
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

func (d durations) with(o durations) durations {
	sum := maps.Clone(d)
	if sum == nil {
		sum = durations{}
	}
	for length, count := range o {
		sum[length] += count
	}
	return sum
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
