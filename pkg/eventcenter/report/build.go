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
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// builder adds up days, from the last to the first, so that only one is in memory at a time.
type builder struct {
	r      Report
	days   int
	find   model.Durations
	clear  model.Durations
	faults map[string]*FaultRow
	on     map[faultOn]bool
	nodes  map[model.Key]*nodeSum
	kinds  map[string]*KindRow

	counted  map[string]int // leftovers by kind on nodes whose agents count pods
	counting map[model.Key]bool
}

// faultOn is a fault on a node.
type faultOn struct {
	name string
	node model.Key
}

type nodeSum struct {
	NodeRow
	faults Faults
}

type placeSum struct {
	PlaceRow
	mean
}

func newBuilder(p Period, name string) *builder {
	return &builder{r: Report{Period: p, Name: name, NeedsPeople: []Need{}, New: []FaultRow{}, ByFault: []FaultRow{},
		Worst: []NodeRow{}}, find: model.Durations{}, clear: model.Durations{}, faults: map[string]*FaultRow{},
		on: map[faultOn]bool{}, nodes: map[model.Key]*nodeSum{}, kinds: map[string]*KindRow{},
		counted: map[string]int{}, counting: map[model.Key]bool{}}
}

// entry returns the entry of a map, which begins as zero.
func entry[K comparable, V any](all map[K]*V, key K) *V {
	if all[key] == nil {
		all[key] = new(V)
	}
	return all[key]
}

// add adds the day before those already added.
func (b *builder) add(d *model.Day) {
	r, last := &b.r, b.days == 0
	if b.days++; last {
		r.Timezone, r.To, r.Through, r.Offset, r.Partial = d.Timezone, d.To, d.Through.UTC(), d.Offset, !d.Complete
	}
	r.From, r.Before = d.From, d.Before
	r.Lost += d.Lost
	b.find.Add(d.Find)
	b.clear.Add(d.Clear)
	for _, n := range d.Nodes {
		b.node(n)
		if last {
			b.open(n)
		}
	}
}

// node adds what happened on a node.
func (b *builder) node(n *model.NodeDay) {
	key := model.Key{Cluster: n.Cluster, Node: n.Name}
	row := entry(b.nodes, key)
	row.Cluster, row.Node, row.Place = n.Cluster, n.Name, cmp.Or(row.Place, n.Place)
	row.Time = model.Time{Available: row.Time.Available + n.Time.Available, Unavailable: row.Time.Unavailable + n.Time.Unavailable,
		Unknown: row.Time.Unknown + n.Time.Unknown, Maintenance: row.Time.Maintenance + n.Time.Maintenance}
	b.r.Availability.Joined += n.Joined
	b.r.Availability.Removed += n.Removed
	for name, c := range n.Faults {
		b.count(name, key, Faults{Outcomes: *c})
	}
	for kind, c := range n.Leftovers {
		k := entry(b.kinds, kind)
		k.Found, k.Released, k.Gone = k.Found+c.Found, k.Released+c.Released, k.Gone+c.Gone
		if n.Pods.Reports {
			b.counted[kind] += c.Found
		}
	}
	if n.Pods.Reports {
		b.counting[key] = true
		b.r.Leftovers.PodsEnded += n.Pods.Ended
	}
}

// count adds numbers of a fault on a node.
func (b *builder) count(name string, on model.Key, some Faults) {
	f := entry(b.faults, name)
	f.Check, f.Reason, f.Severity, f.Detector = model.SplitName(name)
	f.Faults, b.nodes[on].faults = f.Faults.add(some), b.nodes[on].faults.add(some)
	if at := (faultOn{name, on}); !b.on[at] {
		b.on[at] = true
		f.Nodes++
	}
}

// open adds the faults and leftovers that are there at the end.
func (b *builder) open(n *model.NodeDay) {
	for key, o := range n.Open {
		one := Faults{Open: 1}
		switch {
		case b.r.Through.Before(n.Muted[key]):
			one.Muted = 1
		case o.Owner != "":
			one.Owned = 1
		case o.Severity == finding.Info:
			one.Info = 1
		default:
			one.NeedsPeople = 1
			check, reason, _, detector := model.SplitName(o.Name)
			b.r.NeedsPeople = append(b.r.NeedsPeople, Need{Cluster: n.Cluster, Node: n.Name, Place: n.Place, Check: check,
				Reason: reason, Detector: detector, Severity: o.Severity, Subject: o.Subject, Message: o.Message, Found: o.Found,
				Seconds: int64(b.r.Through.Sub(o.Found) / time.Second), Href: nodeHref(n.Cluster, n.Name)})
		}
		b.count(o.Name, model.Key{Cluster: n.Cluster, Node: n.Name}, one)
	}
	for _, kind := range n.Left {
		entry(b.kinds, kind).Open++
	}
}

// end returns the report. before holds the heads of the previous period.
func (b *builder) end(before []head) Report {
	r := &b.r
	r.Find, r.Clear = quantiles(b.find), quantiles(b.clear)
	known := map[string]bool{}
	for _, h := range before {
		r.Earlier = h.Name
		for _, name := range h.Faults {
			known[name] = true
		}
	}
	for name, f := range b.faults {
		f.Faults = f.Faults.balanced()
		f.Href = b.events(event.FaultRaised, "check", f.Check, "reason", f.Reason, "severity", string(f.Severity))
		r.ByFault = append(r.ByFault, *f)
		if f.Found > 0 && !known[name] {
			r.New = append(r.New, *f)
		}
	}
	for _, rows := range [][]FaultRow{r.ByFault, r.New} {
		slices.SortFunc(rows, func(a, b FaultRow) int {
			return cmp.Or(a.Severity.Compare(b.Severity), cmp.Compare(b.Found, a.Found),
				cmp.Compare(a.Check, b.Check), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Detector, b.Detector))
		})
	}
	slices.SortFunc(r.NeedsPeople, func(a, b Need) int {
		return cmp.Or(a.Found.Compare(b.Found), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Check, b.Check), cmp.Compare(a.Subject.Name, b.Subject.Name))
	})
	r.NeedsPeople = r.NeedsPeople[:min(maxListed, len(r.NeedsPeople))]
	b.fleet()
	b.leftovers()
	b.links()
	return *r
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
		k.Kind, k.PerHundred, k.Href = name, hundred(b.counted[name]), b.events(event.LeftoverFound)
		l.Kinds = append(l.Kinds, *k)
	}
	l.PerHundred = hundred(all)
}

// fleet adds up the nodes, for all, for pools and for zones. The worst nodes have the longest unavailability, then the
// most faults.
func (b *builder) fleet() {
	r := &b.r
	pools, zones := map[[2]string]*placeSum{}, map[[2]string]*placeSum{}
	var fleet mean
	for _, n := range b.nodes {
		r.Faults = r.Faults.add(n.faults)
		fleet.add(n.Time)
		r.Availability.MaintenanceSeconds += n.Time.Maintenance / 1000
		for _, p := range []*placeSum{entry(pools, [2]string{n.Cluster, n.Pool}), entry(zones, [2]string{n.Cluster, n.Zone})} {
			p.Nodes++
			p.Faults = p.Faults.add(n.faults)
			p.mean.add(n.Time)
		}
		n.Found = n.faults.Found
		if n.Time.Unavailable > 0 || n.Found > 0 {
			n.Share, n.Href = (&mean{}).add(n.Time).share(), nodeHref(n.Cluster, n.Node)
			r.Worst = append(r.Worst, n.NodeRow)
		}
	}
	slices.SortFunc(r.Worst, func(a, b NodeRow) int {
		return cmp.Or(cmp.Compare(b.Time.Unavailable, a.Time.Unavailable), cmp.Compare(b.Found, a.Found),
			cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	})
	r.Worst = r.Worst[:min(maxWorst, len(r.Worst))]
	r.Faults = r.Faults.balanced()
	r.Availability.Nodes, r.Availability.Share = fleet.nodes, fleet.share()
	r.ByPool, r.ByZone = places(pools, "pool"), places(zones, "zone")
}

func places(sums map[[2]string]*placeSum, field string) []PlaceRow {
	rows := []PlaceRow{}
	for at, p := range sums {
		p.Cluster, p.Name, p.Faults, p.Share = at[0], at[1], p.Faults.balanced(), p.mean.share()
		p.Href = "/agents?" + url.Values{"cluster": {p.Cluster}, field: {p.Name}}.Encode()
		rows = append(rows, p.PlaceRow)
	}
	slices.SortFunc(rows, func(a, b PlaceRow) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	return rows
}

func sum(o, p model.Outcomes) model.Outcomes {
	return model.Outcomes{Found: o.Found + p.Found, OneShot: o.OneShot + p.OneShot, Late: o.Late + p.Late,
		Cleared: o.Cleared + p.Cleared, Repaired: o.Repaired + p.Repaired, Removed: o.Removed + p.Removed}
}

func (f Faults) add(g Faults) Faults {
	return Faults{f.OpenBefore + g.OpenBefore, sum(f.Outcomes, g.Outcomes), f.Open + g.Open, f.NeedsPeople + g.NeedsPeople,
		f.Owned + g.Owned, f.Muted + g.Muted, f.Info + g.Info}
}

// balanced derives the number of faults active before from those that began and ended.
func (f Faults) balanced() Faults {
	f.OpenBefore = f.Open + f.OneShot + f.Late + f.Cleared + f.Repaired + f.Removed - f.Found
	return f
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
		if fields[i+1] != model.Other {
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

func (m *mean) add(t model.Time) *mean {
	if whole := float64(t.Available + t.Unavailable + t.Unknown); whole > 0 { // declared maintenance does not count
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

// quantiles uses the nearest rank: the smallest value that covers the percentage.
func quantiles(d model.Durations) (q Quantiles) {
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
