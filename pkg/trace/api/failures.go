package api

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

const (
	maxListed = 200 // misses of one response
	maxTop    = 3   // owners and nodes of a group
)

// Failures is the response about misses, grouped by act and reason.
type Failures struct {
	AsOf   time.Time `json:"asof"`
	Window string    `json:"window"`
	Groups []Group   `json:"groups"`
	Misses []Act     `json:"misses"`           // the newest
	Total  int       `json:"total"`            // of all groups
	Capped bool      `json:"capped,omitempty"` // there are more misses than are counted
}

// Group are the misses of one act with one reason.
type Group struct {
	Act    record.Act `json:"act"`
	Reason string     `json:"reason"`
	Class  string     `json:"class"`
	N      int        `json:"n"`
	Nodes  sli.Tops   `json:"nodes,omitempty"`  // the most frequent
	Owners sli.Tops   `json:"owners,omitempty"` // the most frequent
	Newest store.Row  `json:"newest"`
}

// group groups misses, the newest first, and returns the largest group first.
func group(rows []store.Row) []Group {
	type key struct {
		act           record.Act
		reason, class string
	}
	type parts struct {
		Group
		nodes, owners map[string]int
	}
	byKey := map[key]*parts{}
	for _, r := range rows {
		k := key{r.Act, r.Reason, r.Class}
		g := byKey[k]
		if g == nil {
			g = &parts{Group{Act: r.Act, Reason: r.Reason, Class: r.Class, Newest: r}, map[string]int{}, map[string]int{}}
			byKey[k] = g
		}
		g.N++
		if r.Node != "" {
			g.nodes[r.Node]++
		}
		if r.Owner != "" {
			g.owners[r.Namespace+"/"+r.Owner]++
		}
	}
	groups := []Group{}
	for _, g := range byKey {
		g.Nodes, g.Owners = sli.TopOf(g.nodes, maxTop), sli.TopOf(g.owners, maxTop)
		groups = append(groups, g.Group)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Act, b.Act), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Class, b.Class))
	})
	return groups
}

// Failures returns the misses of a window, a namespace, nodes and a reason.
func (s *Server) Failures(ctx context.Context, q url.Values) (Failures, error) {
	now := s.Now()
	answer := Failures{AsOf: now, Misses: []Act{}}
	name, window, err := windowOf(q, "1h")
	if err != nil {
		return answer, err
	}
	filter, err := filterOf(q)
	if err != nil {
		return answer, err
	}
	rows, err := s.Store.Misses(ctx, now, window, filter)
	answer.Window, answer.Groups, answer.Total, answer.Capped = name, group(rows), len(rows), len(rows) == store.MaxMisses
	for _, row := range rows[:min(len(rows), maxListed)] {
		answer.Misses = append(answer.Misses, Act{Row: row})
	}
	return answer, err
}
