package api

import (
	"cmp"
	"net/http"
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

func (s *Server) getFailures(w http.ResponseWriter, r *http.Request) {
	answer, ok := s.Failures(w, r)
	if ok {
		s.answer(w, answer)
	}
}

// Failures returns the misses that a request asks for. It answers the request itself if it cannot.
func (s *Server) Failures(w http.ResponseWriter, r *http.Request) (answer Failures, ok bool) {
	name, window, ok := windowOf(w, r, "1h")
	if !ok {
		return answer, false
	}
	filter, ok := filterOf(w, r)
	if !ok {
		return answer, false
	}
	now := s.Now()
	rows, err := s.Store.Misses(r.Context(), now, window, filter)
	if err != nil {
		s.fail(w, "read misses", err)
		return answer, false
	}
	answer = Failures{AsOf: now, Window: name, Groups: group(rows), Misses: []Act{}, Total: len(rows), Capped: len(rows) == store.MaxMisses}
	for _, row := range rows[:min(len(rows), maxListed)] {
		answer.Misses = append(answer.Misses, Act{Row: row})
	}
	return answer, true
}
