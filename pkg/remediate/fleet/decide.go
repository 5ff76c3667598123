package fleet

import (
	"cmp"
	"slices"
	"time"
)

// Claim is a Lease, reduced to the facts that decide who holds a slot.
type Claim struct {
	Name    string // of the Lease
	UID     string
	Node    string
	Action  string
	Created time.Time     // by the clock of the apiserver that stored it
	For     time.Duration // how long its node may hold the slot
	// Version is the resourceVersion of its creation, since claims are never updated. Claims are ordered by it.
	Version uint64
	// Stands: its time is over, but its node is still isolated. Its agent has died, or cannot remove the taint.
	Stands bool
}

// dead reports whether a claim no longer counts at a time of the apiserver. Its node has stopped by then.
func (c Claim) dead(date time.Time) bool { return !c.Stands && c.over(date) }

func (c Claim) over(date time.Time) bool { return !date.Before(c.Created.Add(c.For + Skew)) }

// Standing is the position of one claim among the claims of its kind and pool.
type Standing struct {
	Listed  bool     // it is among them and lives
	Holds   bool     // it holds one of the slots
	Before  int      // how many other nodes have an older live claim
	Holders []string // the nodes that hold the slots, the oldest claim first
	Waiting int      // nodes with a live claim and no slot
}

// Evaluate returns the standing of one claim. It is pure. Slots go to nodes: several claims of one node count as its
// oldest.
//
// At most limit nodes ever hold a slot if each evaluates a consistent list made after its own claim, and stops before
// the claim is dead: among the holders, the node with the youngest claim has seen the claims of all others, which are
// older and still live, and counted less than limit.
func Evaluate(claims []Claim, own Claim, limit int, date time.Time) Standing {
	live := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return c.dead(date) })
	slices.SortFunc(live, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.UID, b.UID))
	})
	var s Standing
	var nodes []string
	for _, c := range live {
		if c.UID == own.UID {
			s.Listed = true
			s.Before = len(nodes)
			if slices.Contains(nodes, c.Node) {
				s.Before--
			}
		}
		if !slices.Contains(nodes, c.Node) {
			nodes = append(nodes, c.Node)
		}
	}
	held := min(max(limit, 0), len(nodes))
	s.Holders, s.Waiting = nodes[:held], len(nodes)-held
	s.Holds = s.Listed && s.Before < limit
	return s
}

// storm reports whether so many nodes wait that the fleet, not its nodes, must be at fault.
func (s Standing) storm(limit int) bool { return s.Waiting >= limit }
