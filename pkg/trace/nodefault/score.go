package nodefault

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

// The points that a node loses.
const (
	pointsOfFault  = 20 // for each fault pod-delivery
	pointsOfFaulty = 50
)

// Day is a node with its acts of a day.
type Day struct {
	Node, Pool string
	Delivered  int
	Missed     int  // by the system
	Faulty     bool // not ready, or with the taint of a fault
	Pods       int  // that live on it
}

// Score is how well a node delivers: 100 less the points in Why, at least 0.
type Score struct {
	Node    string   `json:"node"`
	Pool    string   `json:"pool,omitempty"`
	Score   int      `json:"score"`
	Share   *float64 `json:"share"`       // of acts in time; null if there are too few
	Others  *float64 `json:"othersShare"` // the same of the other nodes of the pool
	Samples int      `json:"samples"`
	Pods    int      `json:"pods"`
	Why     []string `json:"why,omitempty"` // each with its points
}

// Scores returns the scores of all nodes, the worst first.
func Scores(nodes []Day, faults []Fault) []Score {
	pools := map[string]Day{}
	for _, n := range nodes {
		p := pools[n.Pool]
		pools[n.Pool] = Day{Delivered: p.Delivered + n.Delivered, Missed: p.Missed + n.Missed}
	}
	failing := map[string][]Fault{}
	for _, f := range faults {
		failing[f.Node] = append(failing[f.Node], f)
	}
	scores := make([]Score, 0, len(nodes))
	for _, n := range nodes {
		p := pools[n.Pool]
		good, all := p.Delivered-n.Delivered, p.Delivered+p.Missed-n.Delivered-n.Missed
		s := Score{Node: n.Node, Pool: n.Pool, Score: 100, Samples: n.Delivered + n.Missed, Pods: n.Pods,
			Share: sli.Ratio(n.Delivered, n.Delivered+n.Missed), Others: sli.Ratio(good, all)}
		lose := func(points int, format string, args ...any) {
			if points > 0 {
				s.Score, s.Why = max(0, s.Score-points), append(s.Why, fmt.Sprintf("%d points: ", points)+fmt.Sprintf(format, args...))
			}
		}
		if s.Share != nil && s.Others != nil {
			lose(int(100*(*s.Others-*s.Share)+0.5), "%.1f %% of %d were in time, %.1f %% on the other nodes of its pool", 100**s.Share, s.Samples, 100**s.Others)
		}
		for _, f := range failing[n.Node] {
			lose(pointsOfFault, "the fault %s", f.Kind)
		}
		if n.Faulty {
			lose(pointsOfFaulty, "it is not ready, or has the taint of a fault")
		}
		scores = append(scores, s)
	}
	slices.SortFunc(scores, func(a, b Score) int { return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Node, b.Node)) })
	return scores
}
