package pages

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type faultsView struct {
	Filter []web.Field
	Groups []group
	Total  int
}

// faultFields are the filters for faults.
func faultFields(q url.Values) []web.Field {
	return web.Fields(q, map[string][]string{"severity": {"fatal", "warning", "info"}},
		"cluster", "severity", "check", "reason", "node", "detector")
}

func wanted(q url.Values) func(model.NodeFault) bool {
	return func(f model.NodeFault) bool {
		return passes(q.Get("cluster"), f.Cluster) && passes(q.Get("severity"), string(f.Severity)) &&
			passes(q.Get("check"), f.Check) && passes(q.Get("reason"), f.Reason) && passes(q.Get("node"), f.Node) &&
			passes(q.Get("detector"), f.Detector)
	}
}

func faultsJSON(q url.Values) string {
	return jsonOf("/v1/faults", q, "cluster", "severity", "check", "reason", "node", "detector")
}

// faults shows the active faults: a fault on many nodes is one line.
func (s *server) faults(w http.ResponseWriter, r *http.Request, _ web.Session) {
	q := r.URL.Query()
	found, _ := s.Model.Faults(wanted(q))
	groups := groupsOf(found, s.Now())
	s.Show(w, r, http.StatusOK, "faults", web.View{Title: "Faults", JSON: faultsJSON(q), Data: faultsView{
		Filter: faultFields(q), Groups: groups[:min(maxRows, len(groups))], Total: len(groups)}})
}

type faultView struct {
	group
	Faults []model.NodeFault
	Total  int
	Query  url.Values
}

// fault shows one fault on all its nodes, the longest-lasting first.
func (s *server) fault(w http.ResponseWriter, r *http.Request, _ web.Session) {
	q := r.URL.Query()
	q.Set("check", r.PathValue("check"))
	found, _ := s.Model.Faults(wanted(q))
	slices.SortStableFunc(found, func(a, b model.NodeFault) int { return a.RaisedAt.Compare(b.RaisedAt) })
	v := faultView{Faults: found[:min(maxRows, len(found))], Total: len(found), Query: q,
		group: group{Check: q.Get("check"), Reason: q.Get("reason")}}
	if groups := groupsOf(found, s.Now()); len(groups) > 0 {
		v.group = groups[0]
		v.Reason = q.Get("reason") // empty: all reasons
	}
	s.Show(w, r, http.StatusOK, "fault", web.View{Title: strings.TrimSpace(v.Check + " " + v.Reason), JSON: faultsJSON(q),
		Data: v})
}

type nodeView struct {
	nodeRow
	Faults    []model.NodeFault
	Leftovers []event.Activity
	More      int // leftovers
	Lines     []api.Folded
	Before    string
	Gone      bool // the cursor is for events that are no longer kept
}

const (
	timeline     = 100 // events
	nodeLeftover = 50
)

// node shows the full state of a node, and its events, newest first.
func (s *server) node(w http.ResponseWriter, r *http.Request, _ web.Session) {
	key := model.Key{Cluster: r.PathValue("cluster"), Node: r.PathValue("node")}
	detail, _, ok := s.Model.Node(key)
	before, err := offset(r.URL.Query().Get("before"))
	if !ok || err != nil {
		s.Message(w, r, http.StatusNotFound, "Nothing was ever heard of this node.")
		return
	}
	page, err := s.Journal.Read(r.Context(), journal.Query{After: before, Limit: timeline, Backward: true,
		Filter: journal.Filter{journal.Cluster: {key.Cluster}, journal.Node: {key.Node}}})
	if err != nil {
		s.unreadable(w, r, err)
		return
	}
	v := nodeView{nodeRow: nodeRow{Summary: detail.Summary, State: stateOf(detail.Summary, s.Now(), s.Alive)}, Faults: detail.Faults,
		Leftovers: detail.LeftoverList[:min(nodeLeftover, len(detail.LeftoverList))], Lines: api.Fold(linesOf(page))}
	v.More = len(detail.LeftoverList) - len(v.Leftovers)
	if len(page.Records) == timeline {
		v.Before = strconv.FormatUint(page.Next, 10)
	}
	s.Show(w, r, http.StatusOK, "node", web.View{Title: key.Node, JSON: "/v1/nodes/" + url.PathEscape(key.Cluster) + "/" +
		url.PathEscape(key.Node), Data: v})
}

func (s *server) unreadable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.Log.Error("read the journal failed", "err", err)
	}
	s.Message(w, r, http.StatusServiceUnavailable, "The journal cannot be read now; the log of the center says why.")
}

func offset(text string) (uint64, error) {
	return strconv.ParseUint(cmp.Or(text, "0"), 10, 63)
}

func linesOf(page journal.Page) (lines []api.Line) {
	for _, record := range page.Records {
		lines = append(lines, api.LineOf(api.Item{Offset: strconv.FormatUint(record.Offset, 10),
			Received: record.Received, Event: record.JSON}))
	}
	return lines
}

type eventsView struct {
	Filter []web.Field
	Lines  []api.Folded
	Before string
	Query  url.Values
}

// events shows the newest selected events of all nodes.
func (s *server) events(w http.ResponseWriter, r *http.Request, _ web.Session) {
	q := r.URL.Query()
	before, err := offset(q.Get("before"))
	after, err2 := offset(q.Get("after"))
	if err != nil || err2 != nil {
		s.Message(w, r, http.StatusBadRequest, "before and after: an offset is made of digits.")
		return
	}
	filter := journal.Filter{}
	v := eventsView{Query: q}
	for _, name := range journal.Fields() {
		value := q.Get(string(name))
		v.Filter = append(v.Filter, web.Field{Name: string(name), Value: value})
		if value != "" {
			filter[name] = []string{value}
		}
	}
	page, err := s.Journal.Read(r.Context(), journal.Query{After: before, Limit: timeline, Backward: true,
		Filter: filter, Stop: after})
	if err != nil {
		s.unreadable(w, r, err)
		return
	}
	inside := page.Records
	if i := slices.IndexFunc(inside, func(r journal.Record) bool { return r.Offset <= after }); i >= 0 {
		inside = inside[:i]
	}
	v.Lines = api.Fold(linesOf(journal.Page{Records: inside}))
	if len(inside) == timeline {
		v.Before = strconv.FormatUint(page.Next, 10)
	}
	s.Show(w, r, http.StatusOK, "events", web.View{Title: "Events", JSON: jsonOf("/v1/events", q, "cluster", "node",
		"type", "severity", "check", "reason", "after"), Data: v})
}

// leftoverKind holds the leftovers of one kind.
type leftoverKind struct {
	Kind   string
	Count  int
	Nodes  []nodeCount // most first
	More   int
	Oldest time.Time
}

type nodeCount struct {
	model.Key
	Count int
}

const kindNodes = 10

// kindsOf groups the leftovers of nodes by kind, most first.
func kindsOf(details []model.Detail) (kinds []leftoverKind) {
	index := map[string]int{}
	for _, d := range details {
		here := map[string]int{}
		for _, l := range d.LeftoverList {
			i, ok := index[l.Subject.Kind]
			if !ok {
				i = len(kinds)
				index[l.Subject.Kind] = i
				kinds = append(kinds, leftoverKind{Kind: l.Subject.Kind, Oldest: l.FoundAt})
			}
			here[l.Subject.Kind]++
			kinds[i].Count++
			if l.FoundAt.Before(kinds[i].Oldest) {
				kinds[i].Oldest = l.FoundAt
			}
		}
		for kind, count := range here {
			k := &kinds[index[kind]]
			k.Nodes = append(k.Nodes, nodeCount{model.Key{Cluster: d.Cluster, Node: d.Node}, count})
		}
	}
	for i := range kinds {
		k := &kinds[i]
		slices.SortStableFunc(k.Nodes, func(a, b nodeCount) int { return cmp.Compare(b.Count, a.Count) })
		k.More = max(0, len(k.Nodes)-kindNodes)
		k.Nodes = k.Nodes[:min(kindNodes, len(k.Nodes))]
	}
	slices.SortStableFunc(kinds, func(a, b leftoverKind) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	return kinds
}

func (s *server) leftovers(w http.ResponseWriter, r *http.Request, _ web.Session) {
	nodes, _ := s.Model.Nodes("")
	var details []model.Detail
	for _, n := range nodes {
		if n.Leftovers == 0 {
			continue
		}
		if d, _, ok := s.Model.Node(model.Key{Cluster: n.Cluster, Node: n.Node}); ok {
			details = append(details, d)
		}
	}
	s.Show(w, r, http.StatusOK, "leftovers", web.View{Title: "Leftovers", JSON: "/v1/nodes", Data: kindsOf(details)})
}
