package report

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Period is the period of a report.
type Period string

// The periods.
const (
	Daily  Period = "daily"
	Weekly Period = "weekly" // Monday to Sunday
)

// Limits of the lists in a report; Total numbers count everything.
const (
	maxListed = 100
	maxWorst  = 20
)

// Report covers a day or a week. Durations are in seconds, shares between 0 and 1. An href is the address of the list
// behind a number, on the center.
type Report struct {
	Period   Period    `json:"period"`
	Name     string    `json:"name"` // 2026-11-23, or 2026-W48
	Timezone string    `json:"timezone"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"`
	Partial  bool      `json:"partial"` // unfinished, or not completely counted: see Missing
	Missing  []string  `json:"missing,omitempty"`
	Lost     uint64    `json:"lost,omitempty"`    // events that are not counted: the numbers may be off by as many
	Before   uint64    `json:"before,string"`     // the offset before its first event
	Offset   uint64    `json:"offset,string"`     // counted up to this offset
	Earlier  string    `json:"earlier,omitempty"` // a date in the previous period, if that has a report

	Faults       Faults       `json:"faults"`
	ByFault      []FaultRow   `json:"byFault"`
	ByPool       []PlaceRow   `json:"byPool"`
	ByZone       []PlaceRow   `json:"byZone"`
	NeedsPeople  []Need       `json:"needsPeople"` // longest first
	Find         Quantiles    `json:"timeToFind"`
	Clear        Quantiles    `json:"timeToClear"`
	Availability Availability `json:"availability"`
	Worst        []NodeRow    `json:"worstNodes"`
	Leftovers    Leftovers    `json:"leftovers"`
	New          []FaultRow   `json:"new"` // those of ByFault that the previous report lacks

	Links map[string]string `json:"links"`
}

// Faults are the numbers of a period, pool or fault. Open is at the end: NeedsPeople, Owned, Muted and Info.
type Faults struct {
	OpenBefore int `json:"openBefore"`
	model.Outcomes
	Open        int `json:"open"`
	NeedsPeople int `json:"needsPeople"` // fatal or warning, neither muted nor taken over
	Owned       int `json:"owned"`       // taken over, and not muted
	Muted       int `json:"muted"`
	Info        int `json:"info"` // neither muted nor taken over, only informational
}

// FaultRow is a fault, summed over all nodes.
type FaultRow struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // empty: agents
	Severity finding.Severity `json:"severity"`
	Nodes    int              `json:"nodes"`
	Faults
	Href string `json:"href"`
}

// PlaceRow is a pool or a zone of a cluster.
type PlaceRow struct {
	Cluster string `json:"cluster"`
	Name    string `json:"name"` // empty: no pool, or unknown
	Nodes   int    `json:"nodes"`
	Faults
	Share Share  `json:"availability"`
	Href  string `json:"href"`
}

// Need is a fault that waits for a person at the end of the period.
type Need struct {
	Cluster     string           `json:"cluster"`
	Node        string           `json:"node"`
	model.Place                  // of the node
	Check       string           `json:"check"`
	Reason      string           `json:"reason"`
	Detector    string           `json:"detector,omitempty"`
	Severity    finding.Severity `json:"severity"`
	Subject     finding.Subject  `json:"subject"`
	Message     string           `json:"message"`
	Found       time.Time        `json:"found"`
	Seconds     int64            `json:"seconds"` // since its start
	Href        string           `json:"href"`
}

// Quantiles are durations in seconds: see docs/event-center-reference.md for the rounding.
type Quantiles struct {
	Count  int   `json:"count"`
	Median int64 `json:"median"`
	P90    int64 `json:"p90"`
}

// Share is the share of counted time in each state: the mean of the nodes' shares.
type Share struct {
	Available   float64 `json:"available"`
	Unavailable float64 `json:"unavailable"`
	Unknown     float64 `json:"unknown"`
}

// Availability is the fleet's availability.
type Availability struct {
	Nodes int `json:"nodes"` // with some counted time
	Share
	Joined             int   `json:"joined"`  // new nodes
	Removed            int   `json:"removed"` // nodes whose Node object was deleted
	MaintenanceSeconds int64 `json:"maintenanceSeconds"`
}

// NodeRow is one node.
type NodeRow struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	model.Place
	Time  model.Time `json:"milliseconds"`
	Share Share      `json:"availability"`
	Found int        `json:"found"`
	Href  string     `json:"href"`
}

// Leftovers are remains of deleted pods.
type Leftovers struct {
	Kinds     []KindRow `json:"kinds"`
	PodsEnded uint64    `json:"podsEnded"` // on nodes whose agents count them
	Counting  int       `json:"counting"`  // the number of these nodes
	// PerHundred is the number of leftovers per hundred ended pods on those nodes; absent: no pod ended.
	PerHundred *float64 `json:"perHundredPods,omitempty"`
}

// KindRow is one kind of leftovers.
type KindRow struct {
	Kind string `json:"kind"`
	model.LeftoverKind
	Open       int      `json:"open"` // at the end
	PerHundred *float64 `json:"perHundredPods,omitempty"`
	Href       string   `json:"href"`
}
