package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	maxListed = 200 // misses of one response
	maxTop    = 3   // owners and nodes of a group
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

// Lasts returns when the last stage ends, in seconds since the begin of the act; never 0.
func (a Act) Lasts() float64 {
	end := 0.001
	for _, b := range a.Bars {
		end = max(end, b.From+b.Seconds)
	}
	return end
}

// merge combines the acts of the store and of the follower: of an act in both, the follower has the newer state. Judged at once,
// a deletion follows the creation.
func merge(rows []store.Row, acts []follow.Act, now time.Time) Pod {
	all := map[string]Act{}
	for _, r := range rows {
		a := Act{Row: r}
		if r.Evidence != nil {
			a.explain(r.Evidence, r.Evidence.JudgedAt)
		}
		all[r.Key] = a
	}
	for i := range acts {
		a := Act{Row: store.RowOf(&acts[i])}
		a.At = cmp.Or(a.At, now) // it is open
		a.explain(&acts[i], now)
		all[a.Key] = a
	}
	return Pod{slices.SortedFunc(maps.Values(all), func(x, y Act) int {
		return cmp.Or(y.At.Compare(x.At), cmp.Compare(y.Row.Act, x.Row.Act), cmp.Compare(x.Key, y.Key))
	})}
}

// getPod answers about a pod, by UID or by namespace and name. To somebody without a right to its namespace, a UID is unknown.
func (s *Server) getPod(w http.ResponseWriter, r *http.Request, who web.Identity) {
	pod, err := s.Pod(r.Context(), r.PathValue("uid"), r.PathValue("namespace"), r.PathValue("name"))
	if err == nil && (len(pod.Acts) == 0 || s.MayRead(r.Context(), who, pod.Acts[0].Namespace) != nil) {
		err = &web.Refusal{Status: http.StatusNotFound, Reason: "no act of such a pod is known"}
	}
	s.respond(w, r, pod, err)
}

// Pod returns the acts of a pod, by UID or by namespace and name; none if it is unknown.
func (s *Server) Pod(ctx context.Context, uid, namespace, name string) (Pod, error) {
	if max(len(uid), len(namespace), len(name)) > maxName {
		return Pod{}, badRequest("the name is too long")
	}
	acts := s.Follower.Find(uid, namespace, name)
	rows, err := s.Store.Find(ctx, uid, namespace, name)
	if err != nil {
		return Pod{}, err
	}
	return merge(rows, acts, s.Now()), nil
}

// Failures is the response about misses, grouped by act and reason.
type Failures struct {
	AsOf   time.Time   `json:"asof"`
	Window string      `json:"window"`
	Groups []Group     `json:"groups"`
	Misses []store.Row `json:"misses"`           // the newest
	Total  int         `json:"total"`            // of all groups
	Capped bool        `json:"capped,omitempty"` // there are more misses than are counted
}

// Group are the misses of one act with one reason.
type Group struct {
	Act    record.Act `json:"act"`
	Reason string     `json:"reason"`
	Class  string     `json:"class"`
	N      int        `json:"n"`
	Nodes  []sli.Top  `json:"nodes,omitempty"`  // the most frequent
	Owners []sli.Top  `json:"owners,omitempty"` // the most frequent
	Newest store.Row  `json:"newest"`
}

// group groups misses, the newest first, and returns the largest group first.
func group(rows []store.Row) []Group {
	byKey := map[[3]string][]store.Row{}
	for _, r := range rows {
		key := [3]string{string(r.Act), r.Reason, r.Class}
		byKey[key] = append(byKey[key], r)
	}
	groups := []Group{}
	for _, of := range byKey {
		groups = append(groups, Group{Act: of[0].Act, Reason: of[0].Reason, Class: of[0].Class, N: len(of), Newest: of[0],
			Nodes:  sli.TopOf(of, maxTop, func(r store.Row) string { return r.Node }),
			Owners: sli.TopOf(of, maxTop, func(r store.Row) string { return report.FullOwner(r.Namespace, r.Owner) })})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Act, b.Act), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Class, b.Class))
	})
	return groups
}

// Failures returns the misses of a window, a namespace, nodes and a reason.
func (s *Server) Failures(ctx context.Context, q url.Values) (Failures, error) {
	c, err := s.scopeOf(q, "1h")
	if err != nil {
		return Failures{}, err
	}
	rows, err := s.Store.Misses(ctx, c.now, c.window, c.Filter)
	answer := Failures{AsOf: c.now, Window: c.name, Groups: group(rows), Total: len(rows), Capped: len(rows) == store.MaxMisses}
	answer.Misses = append([]store.Row{}, rows[:min(len(rows), maxListed)]...)
	return answer, err
}

// Terminating returns the leftover pods of a namespace; without one, of all.
func (s *Server) Terminating(_ context.Context, q url.Values) ([]follow.Terminating, error) {
	return append([]follow.Terminating{}, s.Follower.Terminating(s.Now(), q.Get("namespace"))...), nil
}
