// Package nodefault finds nodes that fail their pods without another known fault. It is pure.
//
// One owner must not decide on a node: a miss counts only if its owner's pods were delivered on another node at the same
// time, or if pods of another namespace missed there too.
package nodefault

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	// Window is the time whose acts are compared.
	Window = 30 * time.Minute
	// Forgotten is how long after its last miss a fault ends.
	Forgotten = 2 * time.Hour

	fewest    = 3                // misses
	factor    = 5                // times the share of the other nodes
	chance    = 0.001            // of so many misses if the node were like the others
	massShare = 0.20             // of the nodes of a pool: then the fault is the cluster's
	massHold  = 10 * time.Minute // how long it lasts after the last time
	proof     = 20               // deliveries without a miss, which clear
)

// Kind is the reason of a fault.
type Kind string

// The kinds of faults.
const (
	ImagePullFails Kind = "ImagePullFailsOnNode"
	SandboxFails   Kind = "SandboxFailsOnNode"
	MountFails     Kind = "MountFailsOnNode"
	DeliverySlow   Kind = "DeliverySlowOnNode"
	Terminating    Kind = "PodsStuckTerminating"
)

// nodeSide are the reasons that count for each kind.
var nodeSide = map[Kind][]reason.Reason{
	ImagePullFails: {"ImagePullFailed", "ImagePullCostTime", "ImagePullQueued", "ImageInspectError", "RegistryUnavailable"},
	SandboxFails:   {"SandboxFailed", "SandboxTimeout", "NetworkNotReady", "NetworkFailed", "IPExhausted", "RuntimeError"},
	MountFails:     {"MountFailed", "MountSlow", "CSIDriverMissing", "NodeReadOnly", "NodeDiskFull"},
	DeliverySlow:   {"KubeletSlow", "StageSlow"},
	Terminating: {"StopNotNoticed", "ContainerUnkillable", "SandboxStopFailed", "NetworkReleaseFailed", "UnmountStuck", "CgroupStuck",
		"GoneNotReported"},
}

// KindOf returns the kind that a node-side reason counts for; empty: none.
func KindOf(act record.Act, r reason.Reason) Kind {
	for kind, reasons := range nodeSide {
		if (kind == Terminating) == (act == record.Deletion) && slices.Contains(reasons, r) {
			return kind
		}
	}
	return ""
}

// Fault is a node that fails its pods.
type Fault struct {
	Node   string    `json:"node"`
	Pool   string    `json:"pool,omitempty"`
	Kind   Kind      `json:"reason"`
	Misses int       `json:"misses"` // of Acts
	Acts   int       `json:"acts"`
	Others float64   `json:"othersShare"` // of misses of that kind on the other nodes of the pool
	Last   time.Time `json:"lastMiss"`
	Since  time.Time `json:"since"`
}

// owner names the owner of the act's pod.
func owner(a sli.Act) key { return key{a.Pool, a.Namespace + "/" + a.Owner} }

// tally are the acts of a node.
type tally struct {
	pool   string
	acts   map[record.Act]int
	misses map[Kind][]sli.Act
}

// key identifies a number or set of a pool.
type key struct{ pool, of string }

// Find returns the nodes that fail their pods according to the acts of one Window: each node is compared with the others of its
// pool. mass are the pools of which so many nodes fail that the fault is the cluster's; then there are no faults of their nodes.
func Find(acts []sli.Act) (faults []Fault, mass []string) {
	nodes, sum := map[string]*tally{}, map[key]int{} // sum: of each act, and of the misses of each kind
	delivered := map[key]map[string]bool{}           // by owner: nodes
	for _, a := range acts {
		isMiss := a.Outcome == verdict.Missed && a.Class == reason.System
		if a.Node == "" || a.Outcome != verdict.Delivered && !isMiss || a.Act != record.Creation && a.Act != record.Deletion {
			continue
		}
		if nodes[a.Node] == nil {
			nodes[a.Node] = &tally{a.Pool, map[record.Act]int{}, map[Kind][]sli.Act{}}
		}
		n := nodes[a.Node]
		n.acts[a.Act]++
		sum[key{a.Pool, string(a.Act)}]++
		if of := owner(a); !isMiss {
			if delivered[of] == nil {
				delivered[of] = map[string]bool{}
			}
			delivered[of][a.Node] = true
		} else if kind := KindOf(a.Act, a.Reason); kind != "" {
			n.misses[kind] = append(n.misses[kind], a)
			sum[key{a.Pool, string(kind)}]++
		}
	}
	all, failing := map[string]int{}, map[string]int{} // nodes by pool
	for name, node := range nodes {
		all[node.pool]++
		before := len(faults)
		for kind, misses := range node.misses {
			act := misses[0].Act
			n, k := node.acts[act], counted(misses, delivered)
			others, othersMissed := sum[key{node.pool, string(act)}]-n, sum[key{node.pool, string(kind)}]-len(misses)
			share := math.Max(float64(othersMissed), 0.5) / math.Max(float64(others), 1)
			if k < fewest || others == 0 || float64(k)/float64(n) < factor*share || tail(n, k, share) >= chance {
				continue
			}
			last := slices.MaxFunc(misses, func(a, b sli.Act) int { return a.At.Compare(b.At) }).At
			faults = append(faults, Fault{Node: name, Pool: node.pool, Kind: kind, Misses: k, Acts: n,
				Others: float64(othersMissed) / float64(others), Last: last})
		}
		if len(faults) > before {
			failing[node.pool]++
		}
	}
	for pool, n := range failing {
		if n > 1 && float64(n) > massShare*float64(all[pool]) {
			mass = append(mass, pool)
		}
	}
	faults = slices.DeleteFunc(faults, func(f Fault) bool { return slices.Contains(mass, f.Pool) })
	slices.Sort(mass)
	slices.SortFunc(faults, byName)
	return faults, mass
}

func byName(a, b Fault) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Kind, b.Kind)) }

// counted returns how many misses of a node count: all if pods of two namespaces missed, otherwise those of owners whose
// pods were delivered on another node.
func counted(misses []sli.Act, delivered map[key]map[string]bool) (n int) {
	for _, m := range misses {
		if m.Namespace != misses[0].Namespace {
			return len(misses)
		}
		if on := delivered[owner(m)]; len(on) > 1 || len(on) == 1 && !on[m.Node] {
			n++
		}
	}
	return n
}

// tail returns the probability of at least k of n if each has the probability p.
func tail(n, k int, p float64) float64 {
	p = math.Min(p, 1)
	sum := 0.0
	choose, _ := math.Lgamma(float64(n + 1))
	for i := k; i <= n; i++ {
		a, _ := math.Lgamma(float64(i + 1))
		b, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(choose - a - b + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-math.Min(p, 1-1e-12)))
	}
	return math.Min(sum, 1)
}

// Tracker holds the faults until deliveries have proven the node, or two hours have passed.
type Tracker struct {
	active map[[2]string]Fault
	mass   map[string]time.Time // when a pool had too many last
}

// Take compares the acts of one Window with the active faults. ended are the faults that ended, mass the pools whose faults are
// the cluster's.
func (t *Tracker) Take(acts []sli.Act, now time.Time) (active, ended []Fault, mass []string) {
	if t.active == nil {
		t.active, t.mass = map[[2]string]Fault{}, map[string]time.Time{}
	}
	found, many := Find(acts)
	for _, pool := range many {
		t.mass[pool] = now
	}
	maps.DeleteFunc(t.mass, func(_ string, last time.Time) bool { return now.Sub(last) >= massHold })
	for _, f := range found {
		old, known := t.active[[2]string{f.Node, string(f.Kind)}]
		if f.Since = now; known {
			f.Since = old.Since
		}
		if known || t.mass[f.Pool].IsZero() {
			t.active[[2]string{f.Node, string(f.Kind)}] = f
		}
	}
	for key, f := range t.active {
		good := 0
		for _, a := range acts {
			if a.Node == f.Node && a.Outcome == verdict.Delivered && a.At.After(f.Last) && (a.Act == record.Deletion) == (f.Kind == Terminating) {
				good++
			}
		}
		if good >= proof || now.Sub(f.Last) >= Forgotten || !t.mass[f.Pool].IsZero() {
			ended = append(ended, f)
			delete(t.active, key)
			continue
		}
		active = append(active, f)
	}
	slices.SortFunc(active, byName)
	slices.SortFunc(ended, byName)
	return active, ended, slices.Sorted(maps.Keys(t.mass))
}

// The points that a node loses.
const (
	pointsOfFault  = 20 // for each fault pod-delivery
	pointsOfFaulty = 50
	busy           = 80 // percent of load: each further one costs a point
	pointsOfLoad   = 20 // at most
)

// Score is how well a node delivered in a day: 100 less the points in Why, at least 0.
type Score struct {
	Node    string   `json:"node"`
	Pool    string   `json:"pool,omitempty"`
	Score   int      `json:"score"`
	Share   *float64 `json:"share"`       // of acts in time; null if there are too few
	Others  *float64 `json:"othersShare"` // the same of the other nodes of the pool
	Samples int      `json:"samples"`
	Pods    int      `json:"pods"` // that run on it, or start
	// Load is the largest of its loads: requests of CPU and of memory, and pods, each as a share of the allocatable.
	Load float64  `json:"load"`
	Why  []string `json:"why,omitempty"` // each with its points

	Delivered int  `json:"-"`
	Missed    int  `json:"-"` // by the system
	Faulty    bool `json:"-"` // not ready, or with the taint of a fault
}

// Scores completes the scores of all nodes, and sorts them: the worst first.
func Scores(nodes []Score, faults []Fault) []Score {
	pools := map[string]Score{}
	for _, n := range nodes {
		p := pools[n.Pool]
		pools[n.Pool] = Score{Delivered: p.Delivered + n.Delivered, Missed: p.Missed + n.Missed}
	}
	failing := map[string][]Fault{}
	for _, f := range faults {
		failing[f.Node] = append(failing[f.Node], f)
	}
	for i := range nodes {
		s := &nodes[i]
		p := pools[s.Pool]
		s.Score, s.Samples = 100, s.Delivered+s.Missed
		s.Share, s.Others = sli.Ratio(s.Delivered, s.Samples), sli.Ratio(p.Delivered-s.Delivered, p.Delivered+p.Missed-s.Samples)
		lose := func(points int, format string, args ...any) {
			if points > 0 {
				s.Score, s.Why = max(0, s.Score-points), append(s.Why, fmt.Sprintf("%d points: ", points)+fmt.Sprintf(format, args...))
			}
		}
		if s.Share != nil && s.Others != nil {
			lose(int(100*(*s.Others-*s.Share)+0.5), "%.1f %% of %d were in time, %.1f %% on the other nodes of its pool", 100**s.Share, s.Samples, 100**s.Others)
		}
		for _, f := range failing[s.Node] {
			lose(pointsOfFault, "the fault %s", f.Kind)
		}
		if s.Faulty {
			lose(pointsOfFaulty, "it is not ready, or has the taint of a fault")
		}
		load := int(100*s.Load + 0.5)
		lose(min(pointsOfLoad, load-busy), "its load is %d %%", load)
	}
	slices.SortFunc(nodes, func(a, b Score) int { return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Node, b.Node)) })
	return nodes
}
