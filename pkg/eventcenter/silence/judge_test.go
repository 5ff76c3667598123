package silence

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

const interval = time.Minute

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// span is a range in seconds after the center's start, until excluded.
type span struct{ from, until int }

// world is a simulated cluster. Kubelets renew their Leases every 10 s, agents send a sign of life in each interval.
type world struct {
	nodes       int          // 10
	dead, mute  map[int]span // of nodes: kubelet and agent, or only the agent
	noAgent     map[int]bool
	noLease     map[int]bool
	unexpected  bool
	away        span // of the apiserver, for all
	heardBefore bool // agents were heard an hour before the start, and continue this many seconds after it
	back        int
	joins       int // nodes that exist from this second on, without an agent yet
	joinAt      int
	told        map[string]model.Silence // before the start
	seconds     int                      // 3600
}

func in(s span, second int) bool { return second >= s.from && second < s.until }

// last returns when an event with a period (and a phase) last happened before a second.
func (w world) last(second, period, phase int, not ...span) (int, bool) {
	for s := second - (second+phase)%period; s >= 0; s -= period {
		stopped := false
		for _, n := range not {
			stopped = stopped || in(n, s)
		}
		if !stopped {
			return s, true
		}
	}
	return 0, false
}

func (w world) observe(second int, told map[string]model.Silence) Observation {
	o := Observation{At: start.Add(time.Duration(second) * time.Second), Nodes: map[string]Node{},
		Known: map[string]model.Known{}, Whole: told[""], Leases: map[string]time.Time{}}
	all := w.nodes
	if second >= w.joinAt {
		all += w.joins
	}
	for i := range all {
		name := fmt.Sprintf("n%03d", i)
		o.Nodes[name] = Node{UID: name, Expected: !w.unexpected}
		k := model.Known{Silence: told[name]}
		never := w.noAgent[i] || i >= w.nodes
		if at, ok := w.last(second, 60, 7*i, w.dead[i], w.mute[i], span{0, w.back}); ok && !never {
			k.LastSeen = start.Add(time.Duration(at) * time.Second)
		} else if w.heardBefore && !w.noAgent[i] {
			k.LastSeen = start.Add(-time.Hour)
		}
		o.Known[name] = k
		if at, ok := w.last(second, 10, i, w.dead[i], w.away); ok && !w.noLease[i] {
			o.Leases[name] = start.Add(time.Duration(at)*time.Second - 3*time.Hour) // a clock of its own
		}
	}
	if in(w.away, second) {
		o.Leases = nil
	}
	return o
}

// run returns the verdicts as "SECOND NODE TYPE REASON". Lists come a few milliseconds early or late.
func (w world) run() (lines []string) {
	w.nodes, w.seconds = cmp.Or(w.nodes, 10), cmp.Or(w.seconds, 3600)
	j, told := NewJudge(interval, start), map[string]model.Silence{}
	maps.Copy(told, w.told)
	for second := 5; second < w.seconds; second += 20 {
		o := w.observe(second, told)
		o.At = o.At.Add(time.Duration(second%3) * 10 * time.Millisecond)
		for _, v := range j.Judge(o) {
			t := strings.TrimSuffix(strings.TrimPrefix(string(v.Type), "io.github.nodeagent."), ".v1")
			lines = append(lines, strings.Join(strings.Fields(fmt.Sprint(second, " ", v.Node, " ", t, " ", v.Reason)), " "))
			states := map[event.Type]model.State{event.NodeBlind: model.Blind, event.NodeLost: model.Lost,
				event.ClusterSilent: "silent"}
			told[v.Node] = model.Silence{State: states[v.Type], Since: v.Since, ReportedAt: o.At}
		}
	}
	return lines
}

// of gives the first nodes the same value.
func of[T any](nodes int, value T) map[int]T {
	all := map[int]T{}
	for i := range nodes {
		all[i] = value
	}
	return all
}

func lost(node string) map[string]model.Silence {
	return map[string]model.Silence{node: {State: model.Lost, ReportedAt: start.Add(-time.Hour)}}
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		world world
		want  []string
	}{
		"nothing is wrong": {world{seconds: 7200}, nil},
		"a node dies, and comes back": {world{dead: map[int]span{0: {1001, 2000}}}, // its last renewal was at 1000
			[]string{"1045 n000 node.lost LeaseUnchanged", "2005 n000 node.seen Heard"}},
		"a node dies just after a list": {world{dead: map[int]span{5: {1006, 2000}}, seconds: 1200},
			[]string{"1045 n005 node.lost LeaseUnchanged"}},
		"a kubelet that is away for half a minute": {world{dead: map[int]span{0: {1001, 1030}}}, nil},
		"an agent says nothing": {world{mute: map[int]span{0: {1000, 2000}}}, // its last sign of life was at 960
			[]string{"1125 n000 node.blind AgentSilent", "2045 n000 node.seen Heard"}},
		"an agent is late by two intervals": {world{mute: map[int]span{0: {1000, 1070}}}, nil},
		"blind, then lost, then blind": {world{mute: map[int]span{0: {1000, 5000}}, dead: map[int]span{0: {2001, 2500}}},
			[]string{"1125 n000 node.blind AgentSilent", "2045 n000 node.lost LeaseUnchanged",
				"2505 n000 node.seen Heard", "2865 n000 node.blind AgentSilent"}},
		"no agent at all": {world{noAgent: map[int]bool{3: true}},
			[]string{"365 n003 node.blind NoAgent"}},
		"no agent is expected": {world{noAgent: map[int]bool{3: true}, unexpected: true}, nil},
		"a node without Lease or agent": {world{noAgent: map[int]bool{3: true}, noLease: map[int]bool{3: true}},
			[]string{"365 n003 node.lost NoLease"}},
		"no Lease, but an agent": {world{noLease: map[int]bool{3: true}}, nil},
		"a new node has time":    {world{joins: 1, joinAt: 1000, seconds: 1360}, nil},
		"a new node never has an agent": {world{joins: 1, joinAt: 1000},
			[]string{"1365 n010 node.blind NoAgent"}},
		"the center was away": {world{heardBefore: true, back: 290}, nil},
		"dead since before the start": {world{dead: map[int]span{0: {1, 3600}}, heardBefore: true},
			[]string{"65 n000 node.lost LeaseUnchanged"}},
		"lost before the start, and still": {world{told: lost("n000"), dead: map[int]span{0: {0, 3600}}, heardBefore: true},
			nil},
		"lost before the start, and back": {world{told: lost("n000"), dead: map[int]span{0: {0, 100}}, heardBefore: true},
			[]string{"105 n000 node.seen Heard"}},
		"a third of the agents, for a while": {world{nodes: 60, mute: of(20, span{1001, 2000})},
			[]string{"1105 cluster.silent ManyNodesSilent", "2065 cluster.seen Heard"}},
		"the apiserver is away":          {world{away: span{986, 1600}}, nil},
		"the apiserver away, agents too": {world{away: span{1000, 1600}, mute: of(2, span{1000, 1500})}, nil},
		"one node alone": {world{nodes: 1, dead: map[int]span{0: {1001, 2000}}, seconds: 1200},
			[]string{"1045 n000 node.lost LeaseUnchanged"}},
		"two of ten": {world{dead: of(2, span{1001, 9000}), seconds: 1200},
			[]string{"1045 n000 node.lost LeaseUnchanged", "1045 n001 node.lost LeaseUnchanged"}},
		"a third of the nodes, for a while": {world{nodes: 60, dead: of(20, span{1001, 2000})},
			[]string{"1045 cluster.silent ManyNodesSilent", "2025 cluster.seen Heard"}},
		"all agents, for a while": {world{nodes: 60, mute: of(60, span{1001, 2000})},
			[]string{"1105 cluster.silent ManyNodesSilent", "2065 cluster.seen Heard"}},
		"no agent was ever there": {world{nodes: 60, noAgent: of(60, true), seconds: 7200},
			[]string{"365 cluster.silent ManyNodesSilent"}},
		"a third at first, then few for ever": {
			world{nodes: 20, dead: map[int]span{0: {1001, 2000}, 1: {1001, 2000}, 2: {1001, 2000}, 3: {1001, 2000},
				4: {1001, 2000}, 5: {1001, 9000}}},
			[]string{"1045 cluster.silent ManyNodesSilent", "2385 cluster.seen Heard", "2385 n005 node.lost LeaseUnchanged"},
		},
	} {
		expecttest.Equal(t, name, test.want, test.world.run())
	}
}
