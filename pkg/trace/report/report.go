// Package report adds up the acts of a week. It is pure.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const (
	// Days is the time of the budget.
	Days = 28
	// Objective is the share of creations that the system must deliver in that time.
	Objective = 0.99

	worst    = 10     // owners and nodes
	maxNamed = 20_000 // owners and nodes with misses that are counted
)

// Report covers the acts of a week, UTC. Numbers before are those of the same time a week earlier.
type Report struct {
	Week      string       `json:"week,omitempty"` // 2026-W48; empty: the last 7 days
	From      time.Time    `json:"from"`
	To        time.Time    `json:"to"`
	AsOf      time.Time    `json:"asof"`
	Namespace string       `json:"namespace,omitempty"` // empty: all
	Since     time.Time    `json:"since,omitzero"`      // of the oldest verdicts before it; zero: there are none
	Missing   []string     `json:"missing,omitempty"`   // parts that could not be told
	Acts      []Success    `json:"acts"`
	Reasons   []Reason     `json:"reasons"` // of misses, the most frequent first
	Owners    []Worst      `json:"worstOwners"`
	Nodes     []Worst      `json:"worstNodes"`
	Leftovers []Reason     `json:"newLeftovers"`
	Stages    []Stage      `json:"stages"`
	Slower    []Slower     `json:"slowerVersions"`
	Online    []Online     `json:"components"`
	Requests  []Online     `json:"requestsOfTenants"` // by FlowSchema: those that were not throttled
	Exhausted int          `json:"capacityExhausted"` // creations missed because no node had room
	Took      []Placed     `json:"tookCapacity"`      // the last one before them
	Budget    Budget       `json:"budget"`
	Center    *NodesOnline `json:"nodes,omitempty"` // of the event center; null: see Missing
}

// Judged reports whether the report has any verdict.
func (r *Report) Judged() bool {
	return slices.ContainsFunc(r.Acts, func(a Success) bool { return a.Total > 0 })
}

// Title returns the title of the report.
func (r *Report) Title() string {
	title := "Last 7 days"
	if r.Week != "" {
		title = "Week " + r.Week
	}
	if r.Namespace != "" {
		title += ", namespace " + r.Namespace
	}
	return title
}

// Success is the success of one kind of act.
type Success struct {
	sli.Indicator
	Before sli.Indicator `json:"before"`
}

// Reason is a reason of misses.
type Reason struct {
	Act    record.Act `json:"act"`
	Reason string     `json:"reason"`
	Class  string     `json:"class"`
	N      int        `json:"n"`
	Before int        `json:"before"`
	// New means that no miss had it since Since.
	New     bool   `json:"new,omitempty"`
	Example string `json:"example,omitempty"` // the newest pod: namespace/name
	at      time.Time
}

// Worst is an owner or a node. Only misses of the system count.
type Worst struct {
	Name    string   `json:"name"`
	Missed  int      `json:"missed"`
	Samples int      `json:"samples"`    // delivered, and missed by the system
	Share   *float64 `json:"share"`      // Missed / Samples; null if there are too few
	OfAll   *float64 `json:"shareOfAll"` // of all misses of the system
}

// Stage is the time of one stage of delivered acts and those missed by the system, in seconds.
type Stage struct {
	Act     record.Act `json:"act"`
	Stage   stage.ID   `json:"stage"`
	Name    string     `json:"name"`
	Owner   string     `json:"owner"`
	Samples int        `json:"samples"`
	P50     *float64   `json:"p50"`
	P90     *float64   `json:"p90"`
	Share   *float64   `json:"share"` // of the time of all stages of this kind of act
}

// Online is the availability of a component.
type Online struct {
	Component string   `json:"component"`
	Instance  string   `json:"instance"`
	Rate      *float64 `json:"onlineRate"`
	Samples   int      `json:"samples"`
}

// Placed are the requests of the pods of a namespace that got a node.
type Placed struct {
	Namespace string `json:"namespace"`
	Pods      int    `json:"pods"`
	CPU       int64  `json:"cpuMillis"` // in thousandths of a core
	Bytes     int64  `json:"memoryBytes"`
}

// Cores returns the requests of CPU for people.
func (p Placed) Cores() string { return fmt.Sprintf("%.1f", float64(p.CPU)/1000) }

// Memory returns the requests of memory for people, in GiB.
func (p Placed) Memory() string { return fmt.Sprintf("%.1f", float64(p.Bytes)/(1<<30)) }

// Budget is the budget of errors of creations in Days.
type Budget struct {
	Objective float64  `json:"objective"`
	Success   *float64 `json:"success"`
	Samples   int      `json:"samples"`
	Left      *float64 `json:"left"` // share of the budget; negative if more is spent than there was
	Days      float64  `json:"days"` // with verdicts
}

// NodesOnline is the availability of the cluster's nodes according to the event center's report of a week. Shares are
// between 0 and 1.
type NodesOnline struct {
	Week        string  `json:"week"`
	Partial     bool    `json:"partial,omitempty"` // the week is not over, or not completely counted
	Nodes       int     `json:"nodes"`
	Available   float64 `json:"available"`
	Unavailable float64 `json:"unavailable"`
	Unknown     float64 `json:"unknown"`
	Found       int     `json:"faultsFound"`
	Repaired    int     `json:"faultsRepaired"` // after a successful action of the agent
}

// WeekOf returns the name of a time's ISO week.
func WeekOf(at time.Time) string {
	year, week := at.UTC().ISOWeek()
	return fmt.Sprintf("%04d-W%02d", year, week)
}

// Bounds returns begin and end of an ISO week.
func Bounds(week string) (from, to time.Time, err error) {
	var year, number int
	if _, err := fmt.Sscanf(week, "%4d-W%2d", &year, &number); err == nil {
		fourth := time.Date(year, time.January, 4, 0, 0, 0, 0, time.UTC) // always in the first week
		from = fourth.AddDate(0, 0, 7*(number-1)-(int(fourth.Weekday())+6)%7)
	}
	if WeekOf(from) != week {
		return from, to, fmt.Errorf("week %.20q: must be like 2026-W48", week)
	}
	return from, from.AddDate(0, 0, 7), nil
}

// counts reports whether the times of an act are the system's: delivered, or missed by it.
func counts(a sli.Act) bool {
	return a.Outcome == verdict.Delivered || a.Outcome == verdict.Missed && a.Class != reason.User
}

// StageKey identifies the acts whose times of a stage are added up.
type StageKey struct {
	Act    record.Act
	Stage  stage.ID
	Build  int64
	Cached bool // no image was pulled
}

// Stages are the times of stages.
type Stages map[StageKey]Histogram

// Add adds the times of an act.
func (s Stages) Add(a sli.Act) {
	if !counts(a) {
		return
	}
	cached := true
	Times(a.Stages, func(id string, _ int64) {
		cached = cached && stage.ID(id) != stage.Pull && stage.ID(id) != stage.NewPull
	})
	Times(a.Stages, func(id string, took int64) {
		histogram(s, StageKey{a.Act, stage.ID(id), a.Build, cached}).Add(took)
	})
}

// Sum adds up the acts of a week: first all misses, then all acts.
type Sum struct {
	Week, Before, Month []sli.Count            // the verdicts of the week and of the times that it is compared with
	Known               map[reason.Reason]bool // of misses before the week

	Capped    bool // more owners or nodes had misses than are counted
	owners    map[string]*Worst
	nodes     map[string]*Worst
	misses    map[Reason]*Reason
	leftovers map[Reason]*Reason
	stages    Stages             // of all builds
	spent     map[StageKey]int64 // in ms; without a stage: in all stages of a kind of act
}

// NewSum returns an empty sum.
func NewSum() *Sum {
	return &Sum{owners: map[string]*Worst{}, nodes: map[string]*Worst{}, misses: map[Reason]*Reason{}, leftovers: map[Reason]*Reason{},
		stages: Stages{}, spent: map[StageKey]int64{}}
}

// Miss adds the miss of a pod. left means that it is a deletion that did not end.
func (s *Sum) Miss(a sli.Act, pod string, left bool) {
	key := Reason{Act: a.Act, Reason: string(a.Reason), Class: string(a.Class)}
	count(s.misses, key, a.Namespace+"/"+pod, a.At)
	if left {
		count(s.leftovers, key, a.Namespace+"/"+pod, a.At)
	}
	if !counts(a) {
		return
	}
	s.missed(s.owners, FullOwner(a.Namespace, a.Owner))
	s.missed(s.nodes, a.Node)
}

func count(of map[Reason]*Reason, key Reason, pod string, at time.Time) {
	if of[key] == nil {
		of[key] = new(key)
	}
	if r := of[key]; at.After(r.at) {
		r.Example, r.at = pod, at
	}
	of[key].N++
}

func (s *Sum) missed(of map[string]*Worst, name string) {
	switch w := of[name]; {
	case name == "":
	case w != nil:
		w.Missed++
	case len(of) < maxNamed:
		of[name] = &Worst{Name: name, Missed: 1}
	default:
		s.Capped = true
	}
}

// FullOwner names an owner with its namespace; empty: there is no owner.
func FullOwner(namespace, owner string) string {
	if owner == "" {
		return ""
	}
	return namespace + "/" + owner
}

// Act adds an act, a miss too.
func (s *Sum) Act(a sli.Act) {
	if !counts(a) {
		return
	}
	if w := s.owners[FullOwner(a.Namespace, a.Owner)]; w != nil {
		w.Samples++
	}
	if w := s.nodes[a.Node]; w != nil {
		w.Samples++
	}
	Times(a.Stages, func(id string, took int64) {
		k := StageKey{Act: a.Act, Stage: stage.ID(id)}
		histogram(s.stages, k).Add(took)
		s.spent[k] += took
		s.spent[StageKey{Act: a.Act}] += took
	})
}

// Fill completes a report whose time is set.
func (s *Sum) Fill(r *Report) {
	missed := 0
	before := sli.Add(s.Before)
	for i, now := range sli.Add(s.Week) {
		r.Acts = append(r.Acts, Success{now, before[i]})
		missed += now.System
	}
	r.Reasons = s.reasons(!r.Since.IsZero())
	r.Owners, r.Nodes = top(s.owners, missed), top(s.nodes, missed)
	r.Leftovers, r.Stages = sorted(s.leftovers), s.times()
	month := sli.Of(s.Month, record.Creation)
	r.Budget = Budget{Objective: Objective, Success: month.Success, Samples: month.Samples}
	if month.Success != nil {
		r.Budget.Left = new(1 - (1-*month.Success)/(1-Objective))
	}
}

// reasons counts the misses by reason. New ones are known only if there was a time before the week.
func (s *Sum) reasons(history bool) []Reason {
	counts := map[Reason]*Reason{}
	for i, of := range [][]sli.Count{s.Week, s.Before} {
		for _, x := range of {
			if x.Outcome != verdict.Missed {
				continue
			}
			key := Reason{Act: x.Act, Reason: x.Reason, Class: string(x.Class)}
			if counts[key] == nil {
				counts[key] = new(key)
				counts[key].New = history && !s.Known[reason.Reason(x.Reason)]
				if m := s.misses[key]; m != nil {
					counts[key].Example = m.Example
				}
			}
			if r := counts[key]; i == 0 {
				r.N += x.N
			} else {
				r.Before += x.N
			}
		}
	}
	return sorted(counts)
}

// sorted returns reasons, the most frequent first.
func sorted(of map[Reason]*Reason) (all []Reason) {
	for _, r := range of {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(b.Before, a.Before), cmp.Compare(a.Act, b.Act), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Class, b.Class))
	})
	return all
}

func top(of map[string]*Worst, missed int) (all []Worst) {
	for _, w := range slices.SortedFunc(maps.Values(of), func(a, b *Worst) int {
		return cmp.Or(cmp.Compare(b.Missed, a.Missed), cmp.Compare(a.Samples, b.Samples), cmp.Compare(a.Name, b.Name))
	})[:min(len(of), worst)] {
		w.Share, w.OfAll = sli.Ratio(w.Missed, w.Samples), sli.Ratio(w.Missed, missed)
		all = append(all, *w)
	}
	return all
}

func (s *Sum) times() (all []Stage) {
	for k, h := range s.stages {
		info := stage.Describe(k.Stage)
		x := Stage{Act: k.Act, Stage: k.Stage, Name: info.Name, Owner: info.Owner, Samples: h.N(), P50: h.Quantile(0.5), P90: h.Quantile(0.9)}
		if of := s.spent[StageKey{Act: k.Act}]; of > 0 && x.Samples >= sli.Enough {
			x.Share = new(float64(s.spent[k]) / float64(of))
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b Stage) int { return cmp.Or(cmp.Compare(a.Act, b.Act), cmp.Compare(a.Stage, b.Stage)) })
	return all
}
