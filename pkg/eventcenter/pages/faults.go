package pages

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// The filters for faults, those of /v1/faults, and for events.
const (
	faultFields = "cluster severity check reason node detector"
	eventFields = "cluster node type severity check reason"
)

// faults shows the active faults: a fault on many nodes is one line.
func (s *server) faults(r *http.Request, _ web.Session) (web.View, error) {
	q := given(r.URL.Query())
	if err := api.KnownFault(q); err != nil {
		return web.View{}, err
	}
	found, _ := s.Model.Faults(api.SelectsFault(q))
	fields := web.Fields(q, map[string][]string{"severity": {"fatal", "warning", "info"}}, strings.Fields(faultFields)...)
	return web.View{Title: "Faults", JSON: jsonOf("/v1/faults", q, strings.Fields(faultFields)...),
		Data: listOf(fields, groupsOf(found, s.Now()))}, nil
}

type faultView struct {
	group
	Faults  []model.NodeFault
	Total   int
	Selects map[string]string // fields of the form for all of them
}

// fault shows one fault on all its nodes, the longest-lasting first.
func (s *server) fault(r *http.Request, _ web.Session) (web.View, error) {
	q := given(r.URL.Query())
	if err := api.KnownFault(q); err != nil {
		return web.View{}, err
	}
	q.Set("check", r.PathValue("check"))
	form := map[string]string{}
	for _, name := range strings.Fields(faultFields) {
		if q.Has(name) { // one value of each
			form[name] = q.Get(name)
			q.Set(name, form[name])
		}
	}
	found, _ := s.Model.Faults(api.SelectsFault(q))
	groups := groupsOf(found, s.Now())
	slices.SortStableFunc(found, func(a, b model.NodeFault) int { return a.RaisedAt.Compare(b.RaisedAt) })
	v := faultView{Faults: found[:min(maxRows, len(found))], Total: len(found), Selects: form}
	if len(groups) > 0 {
		v.group = groups[0]
	}
	v.Check, v.Reason = q.Get("check"), q.Get("reason") // empty: all reasons
	return web.View{Title: strings.TrimSpace(v.Check + " " + v.Reason), Data: v,
		JSON: jsonOf("/v1/faults", q, strings.Fields(faultFields)...)}, nil
}

type nodeView struct {
	nodeRow
	Faults    []model.NodeFault
	Leftovers []event.Activity
	More      int // leftovers
	Lines     []api.Folded
	Before    uint64 // cursor for the events before these; 0: there are none
}

const (
	timeline     = 100 // events
	nodeLeftover = 50
)

// node shows the full state of a node, and its events, newest first.
func (s *server) node(r *http.Request, _ web.Session) (web.View, error) {
	a, err := s.api.Node(r, timeline)
	if err != nil {
		return web.View{}, err
	}
	n := a.Node
	v := nodeView{nodeRow: nodeRow{Summary: n.Summary, State: stateOf(n.Summary)}, Faults: n.Faults,
		Leftovers: n.LeftoverList[:min(nodeLeftover, len(n.LeftoverList))], Lines: api.Fold(a.Events), Before: a.Before}
	v.More = len(n.LeftoverList) - len(v.Leftovers)
	return web.View{Title: n.Node, JSON: "/v1" + r.URL.EscapedPath(), Data: v}, nil
}

// events shows the newest selected events of all nodes.
func (s *server) events(r *http.Request, _ web.Session) (web.View, error) {
	q := given(r.URL.Query())
	items, before, err := s.api.Newest(r, q, timeline)
	if err != nil {
		return web.View{}, err
	}
	fields := strings.Fields(eventFields)
	return web.View{Title: "Events", JSON: jsonOf("/v1/events", q, append(fields, "after")...),
		Data: list{Filter: web.Fields(q, nil, fields...), Rows: api.Fold(items), Before: before, Query: q}}, nil
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
func kindsOf(details []model.Detail) []leftoverKind {
	kinds := map[string]*leftoverKind{}
	for _, d := range details {
		node := nodeCount{Key: model.Key{Cluster: d.Cluster, Node: d.Node}}
		for _, l := range d.LeftoverList {
			k := kinds[l.Subject.Kind]
			if k == nil {
				k = &leftoverKind{Kind: l.Subject.Kind, Oldest: l.FoundAt}
				kinds[k.Kind] = k
			}
			if len(k.Nodes) == 0 || k.Nodes[len(k.Nodes)-1].Key != node.Key {
				k.Nodes = append(k.Nodes, node)
			}
			k.Nodes[len(k.Nodes)-1].Count++
			k.Count++
			k.Oldest = event.Earlier(k.Oldest, l.FoundAt)
		}
	}
	var sorted []leftoverKind
	for _, k := range kinds {
		slices.SortStableFunc(k.Nodes, func(a, b nodeCount) int { return cmp.Compare(b.Count, a.Count) })
		k.More = max(0, len(k.Nodes)-kindNodes)
		k.Nodes = k.Nodes[:min(kindNodes, len(k.Nodes))]
		sorted = append(sorted, *k)
	}
	slices.SortFunc(sorted, func(a, b leftoverKind) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	return sorted
}

func (s *server) leftovers(*http.Request, web.Session) (web.View, error) {
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
	return web.View{Title: "Leftovers", Data: kindsOf(details)}, nil
}
