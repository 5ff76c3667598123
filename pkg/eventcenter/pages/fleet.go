package pages

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// states are those of a node, worst first.
func states() []string {
	return []string{string(model.Lost), "fatal", string(model.Blind), "degraded", "healthy"}
}

// stateOf returns the state of a node for people. The last state of a silent agent may be outdated, but a fatal fault is
// worth showing anyway.
func stateOf(n model.Summary) string {
	switch {
	case n.State == string(model.Lost):
		return n.State
	case n.Fatal > 0:
		return "fatal"
	case n.State == string(model.Blind):
		return n.State
	case n.Warning > 0:
		return "degraded"
	}
	return "healthy"
}

// tally counts the nodes of a group by state.
type tally struct {
	Cluster, Pool string
	Zone          string
	Nodes         int
	In            map[string]int
}

func (t *tally) add(state string) {
	if t.In == nil {
		t.In = map[string]int{}
	}
	t.Nodes++
	t.In[state]++
}

// group is a fault on one or many nodes.
type group struct {
	Severity      finding.Severity
	Check, Reason string
	Nodes, Count  int
	Acknowledged  int
	Muted         bool // on all nodes
	Oldest        time.Time
	Message       string    // of the oldest fault
	Where         model.Key // the node, if there is only one
	Link          string
}

// groupsOf groups faults by check and reason: the most severe first, then those on most nodes. Faults muted on all
// nodes are last. It sorts the faults, of which those on a node stay together.
func groupsOf(faults []model.NodeFault, now time.Time) (groups []group) {
	slices.SortStableFunc(faults, func(a, b model.NodeFault) int {
		return cmp.Or(a.Severity.Compare(b.Severity), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Reason, b.Reason))
	})
	var g *group
	for _, f := range faults {
		if g == nil || g.Severity != f.Severity || g.Check != f.Check || g.Reason != f.Reason {
			groups = append(groups, group{Severity: f.Severity, Check: f.Check, Reason: f.Reason, Muted: true,
				Oldest: f.RaisedAt, Message: f.Message, Link: groupLink(f)})
			g = &groups[len(groups)-1]
		}
		g.Count++
		if where := (model.Key{Cluster: f.Cluster, Node: f.Node}); g.Where != where {
			g.Nodes, g.Where = g.Nodes+1, where
		}
		g.Muted = g.Muted && f.Operator.Muted(now)
		if f.Operator != nil && f.Operator.AcknowledgedBy != "" {
			g.Acknowledged++
		}
		if f.RaisedAt.Before(g.Oldest) {
			g.Oldest, g.Message = f.RaisedAt, f.Message
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Or(boolean(a.Muted)-boolean(b.Muted),
			a.Severity.Compare(b.Severity), cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.Check+a.Reason, b.Check+b.Reason))
	})
	return groups
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func groupLink(f model.NodeFault) string {
	return "/faults/" + url.PathEscape(f.Check) + "?" + url.Values{"reason": {f.Reason},
		"severity": {string(f.Severity)}}.Encode()
}

type fleetView struct {
	All      tally
	Pools    []tally
	Placed   bool                 // a pool or zone of a node is known
	Silent   []model.ClusterState // so many nodes that the cause may be elsewhere
	States   []string
	Groups   []group // the first few
	More     int
	LastSeen time.Time // the latest event of any agent
}

// fleetGroups limits the faults on the first page.
const fleetGroups = 10

func (s *server) fleet(*http.Request, web.Session) (web.View, error) {
	now := s.Now()
	nodes, _ := s.Model.Nodes("")
	agents, _ := s.Model.LastSeen()
	v := fleetView{States: states(), LastSeen: agents, Silent: s.Model.SilentClusters()}
	for _, n := range nodes {
		i := slices.IndexFunc(v.Pools, func(t tally) bool {
			return t.Cluster == n.Cluster && t.Pool == n.Pool && t.Zone == n.Zone
		})
		if i < 0 {
			i = len(v.Pools)
			v.Pools = append(v.Pools, tally{Cluster: n.Cluster, Pool: n.Pool, Zone: n.Zone})
		}
		state := stateOf(s.Model.At(n, now, s.Alive))
		v.Placed = v.Placed || n.Pool != "" || n.Zone != ""
		v.All.add(state)
		v.Pools[i].add(state)
	}
	slices.SortStableFunc(v.Pools, func(a, b tally) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Zone, b.Zone))
	})
	v.Pools = v.Pools[:min(maxRows, len(v.Pools))]
	faults, _ := s.Model.Faults(func(f model.NodeFault) bool { return f.Severity != finding.Info })
	groups := groupsOf(faults, now)
	v.Groups = groups[:min(fleetGroups, len(groups))]
	v.More = len(groups) - len(v.Groups)
	return web.View{Title: "Fleet", JSON: "/v1/nodes", Data: v}, nil
}

type nodeRow struct {
	model.Summary
	State string
	Other string // the version of most agents in its cluster, if different
}

// agents lists the nodes with their agents' data. It selects by the states of the pages, and by a part of a node's name.
func (s *server) agents(r *http.Request, _ web.Session) (web.View, error) {
	q, now := given(r.URL.Query()), s.Now()
	if err := cmp.Or(api.Known(q, "state", states()...), api.KnownAgent(q)); err != nil {
		return web.View{}, err
	}
	all, _ := s.Model.Nodes("")
	fields := web.Fields(q, map[string][]string{"state": states(),
		"agent": {string(model.OtherVersion), string(model.BlindChecks), string(model.WrongClock)}},
		"cluster", "pool", "zone", "state", "version", "agent", "node")
	var rows []nodeRow
	common := model.CommonVersions(all)
	state, name := q.Get("state"), q.Get("node")
	q.Del("state")
	for _, n := range all {
		n = s.Model.At(n, now, s.Alive)
		row := nodeRow{Summary: n, State: stateOf(n)}
		if n.Odd(model.OtherVersion, common) {
			row.Other = common[n.Cluster]
		}
		if api.SelectsNode(q, n, common) && (state == "" || row.State == state) && strings.Contains(n.Node, name) {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b nodeRow) int {
		return slices.Index(states(), a.State) - slices.Index(states(), b.State)
	})
	return web.View{Title: "Nodes", Data: listOf(fields, rows),
		JSON: jsonOf("/v1/nodes", q, "cluster", "pool", "zone", "version", "agent")}, nil
}
