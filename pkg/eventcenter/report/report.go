package report

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Period is what a report is of.
type Period string

// The periods.
const (
	Daily  Period = "daily"
	Weekly Period = "weekly" // Monday to Sunday
)

// Bounds of the lists in a report; Total numbers count all.
const (
	maxListed = 100
	maxWorst  = 20
)

// Report is what happened in a day or a week. Lengths of time are in seconds, shares between 0 and 1. An href is the
// address of the list behind a number, on the center.
type Report struct {
	Period   Period    `json:"period"`
	Name     string    `json:"name"` // 2026-11-23, or 2026-W48
	Timezone string    `json:"timezone"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Through  time.Time `json:"through"`
	Partial  bool      `json:"partial"` // it is not over, or a part of it was not counted: see Missing
	Missing  []string  `json:"missing,omitempty"`
	Lost     uint64    `json:"lost,omitempty"`    // events that cannot be read any more: the numbers may be wrong by them
	Before   uint64    `json:"before,string"`     // the offset before its first event
	Offset   uint64    `json:"offset,string"`     // up to which it is counted
	Earlier  string    `json:"earlier,omitempty"` // a date in the period before, where it has a report

	Faults       Faults       `json:"faults"`
	ByFault      []FaultRow   `json:"byFault"`
	ByPool       []PlaceRow   `json:"byPool"`
	ByZone       []PlaceRow   `json:"byZone"`
	NeedsPeople  []Need       `json:"needsPeople"` // the longest first
	Find         Quantiles    `json:"timeToFind"`
	Clear        Quantiles    `json:"timeToClear"`
	Availability Availability `json:"availability"`
	Worst        []NodeRow    `json:"worstNodes"`
	Leftovers    Leftovers    `json:"leftovers"`
	New          []FaultRow   `json:"new"` // of ByFault, what the report before did not have

	Links map[string]string `json:"links"`
}

// Faults are the numbers of a period, of a pool or of a fault. Open is at the end: NeedsPeople, Owned, Muted and Info.
type Faults struct {
	OpenBefore int `json:"openBefore"`
	Outcomes
	Open        int `json:"open"`
	NeedsPeople int `json:"needsPeople"` // fatal or warning, neither muted nor taken over
	Owned       int `json:"owned"`       // taken over, and not muted
	Muted       int `json:"muted"`
	Info        int `json:"info"` // neither muted nor taken over, and nothing for people
}

// FaultRow is one fault on all nodes.
type FaultRow struct {
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"` // unless agents have found it
	Severity finding.Severity `json:"severity"`
	Nodes    int              `json:"nodes"`
	Faults
	Href string `json:"href"`
}

// PlaceRow is a pool or a zone of a cluster.
type PlaceRow struct {
	Cluster string `json:"cluster"`
	Name    string `json:"name"` // empty: of no pool, or not known
	Nodes   int    `json:"nodes"`
	Faults
	Share Share  `json:"availability"`
	Href  string `json:"href"`
}

// Need is a fault at the end of the period that waits for a person.
type Need struct {
	Cluster  string           `json:"cluster"`
	Node     string           `json:"node"`
	Place                     // of the node
	Check    string           `json:"check"`
	Reason   string           `json:"reason"`
	Detector string           `json:"detector,omitempty"`
	Severity finding.Severity `json:"severity"`
	Subject  finding.Subject  `json:"subject"`
	Message  string           `json:"message"`
	Found    time.Time        `json:"found"`
	Seconds  int64            `json:"seconds"` // since then
	Href     string           `json:"href"`
}

// Quantiles are of lengths of time in seconds: see docs/event-center-reference.md for how they are rounded.
type Quantiles struct {
	Count  int   `json:"count"`
	Median int64 `json:"median"`
	P90    int64 `json:"p90"`
}

// Share is how much of the time that counts nodes were what: the mean of the nodes' own shares.
type Share struct {
	Available   float64 `json:"available"`
	Unavailable float64 `json:"unavailable"`
	Unknown     float64 `json:"unknown"`
}

// Availability is that of the fleet.
type Availability struct {
	Nodes int `json:"nodes"` // that were there for some time that counts
	Share
	Joined             int   `json:"joined"`  // nodes that were not there before
	Removed            int   `json:"removed"` // nodes whose Node object is gone
	MaintenanceSeconds int64 `json:"maintenanceSeconds"`
}

// NodeRow is one node.
type NodeRow struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	Place
	Time  Time   `json:"milliseconds"`
	Share Share  `json:"availability"`
	Found int    `json:"found"`
	Href  string `json:"href"`
}

// Leftovers are of deleted pods.
type Leftovers struct {
	Kinds     []KindRow `json:"kinds"`
	PodsEnded uint64    `json:"podsEnded"` // on the nodes whose agents count them
	Counting  int       `json:"counting"`  // such nodes
	// PerHundred is how many leftovers were found on those nodes for a hundred pods that ended there; absent: none ended.
	PerHundred *float64 `json:"perHundredPods,omitempty"`
}

// KindRow is one kind of leftovers.
type KindRow struct {
	Kind string `json:"kind"`
	LeftoverKind
	Open       int      `json:"open"` // at the end
	PerHundred *float64 `json:"perHundredPods,omitempty"`
	Href       string   `json:"href"`
}
