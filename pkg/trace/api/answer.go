package api

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// Pod is the response about a pod: its acts, newest first.
type Pod struct {
	Acts []Act `json:"acts"`
}

// Act is the response about one act.
type Act struct {
	store.Row
	Detail string          `json:"detail,omitempty"` // the text or name that decided
	Cost   stage.ID        `json:"stage,omitempty"`  // the stage that took the time
	Others []reason.Reason `json:"otherReasons,omitempty"`
	Advice string          `json:"advice,omitempty"`
	Bars   []Bar           `json:"waterfall,omitempty"` // for open acts and misses
}

// Bar is a stage in the waterfall. Times are seconds since the begin of the act.
type Bar struct {
	Stage       stage.ID `json:"stage"`
	Name        string   `json:"name"`
	Owner       string   `json:"owner"`
	From        float64  `json:"from"`
	Seconds     float64  `json:"seconds"`
	Uncertainty float64  `json:"uncertaintySeconds"`
	Open        bool     `json:"open,omitempty"`
}

// open returns the response about an act in the follower, at a time.
func open(a *follow.Act, now time.Time) Act {
	t := &a.Timeline
	row := store.Row{UID: t.UID, Act: t.Act, Namespace: t.Namespace, Name: t.Name, Node: t.Node, Outcome: a.Verdict.Outcome, Why: a.Verdict.Why,
		First: string(a.First.Reason), Reason: string(a.Final.Reason), Class: string(a.Final.Class), At: a.JudgedAt,
		Judged: a.Verdict.Judged.Middle().Seconds(), User: a.Verdict.User.Seconds()}
	if t.OwnerKind != "" {
		row.Owner = t.OwnerKind + "/" + t.OwnerName
	}
	if a.JudgedAt.IsZero() {
		row.At = now
	}
	answer := Act{Row: row}
	answer.explain(a, now)
	return answer
}

// explain adds the evidence.
func (a *Act) explain(of *follow.Act, now time.Time) {
	if end := of.Timeline.End(); end.Known() {
		now = end.Arrival
	}
	for _, s := range stage.Of(&of.Timeline, now) {
		info := stage.In(&of.Timeline, s.ID)
		a.Bars = append(a.Bars, Bar{s.ID, info.Name, info.Owner, of.Timeline.ByOurs(of.Timeline.Begin(), s.Start).Middle().Seconds(),
			s.Spent.Middle().Seconds(), s.Spent.Uncertainty().Seconds(), s.Open()})
	}
	if of.Verdict.Outcome == verdict.Missed {
		a.Detail, a.Cost, a.Others = of.Final.Detail, of.Final.Stage, of.Final.Others
		a.Advice = reason.Describe(of.Final.Reason).Advice
	}
}

// merge combines the acts of the store and of the follower: of an act in both, the follower has the newer state.
func merge(rows []store.Row, acts []follow.Act, now time.Time) Pod {
	var answer Pod
	live := map[string]bool{}
	for i := range acts {
		live[acts[i].Key().String()] = true
		answer.Acts = append(answer.Acts, open(&acts[i], now))
	}
	for _, r := range rows {
		if live[r.Key] {
			continue
		}
		a := Act{Row: r}
		if r.Evidence != nil {
			a.explain(r.Evidence, r.Evidence.JudgedAt)
		}
		answer.Acts = append(answer.Acts, a)
	}
	slices.SortStableFunc(answer.Acts, func(x, y Act) int { // judged at once: a deletion follows the creation
		return cmp.Or(y.At.Compare(x.At), cmp.Compare(y.Row.Act, x.Row.Act))
	})
	return answer
}
