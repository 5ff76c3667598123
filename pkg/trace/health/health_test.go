package health

import (
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/sli"
)

func success(ratio float64) *sli.Indicator { return &sli.Indicator{Success: &ratio, Samples: 100} }

func TestJudge(t *testing.T) {
	api := [][2]string{{"apiserver", "10.0.0.1:6443"}}
	for name, c := range map[string]struct {
		in   Inputs
		want Level
		text string
	}{
		"nothing to say":               {Inputs{}, Healthy, ""},
		"no value":                     {Inputs{Creation: &sli.Indicator{}}, Healthy, ""},
		"in time":                      {Inputs{Creation: success(0.99)}, Healthy, ""},
		"some late":                    {Inputs{Creation: success(0.98)}, Warning, "98.0 % of 100 creations were in time in 5 minutes"},
		"many late":                    {Inputs{Creation: success(0.89)}, Fatal, "89.0 % of 100 creations were in time in 5 minutes"},
		"apiserver":                    {Inputs{Offline: api}, Fatal, "apiserver 10.0.0.1:6443 is offline"},
		"scheduler":                    {Inputs{Offline: [][2]string{{"scheduler", "lease"}}}, Warning, "scheduler lease is offline"},
		"a fifth of the nodes":         {Inputs{Now: Counts{Nodes: 10, FaultyNodes: 2}}, Healthy, ""},
		"more than a fifth":            {Inputs{Now: Counts{Nodes: 10, FaultyNodes: 3}}, Fatal, "3 of 10 nodes are faulty"},
		"faulty nodes rise":            {Inputs{Now: Counts{Nodes: 10, FaultyNodes: 1}, Compared: true}, Warning, "faulty nodes rose from 0 to 1 in 10m0s"},
		"not compared":                 {Inputs{Now: Counts{Nodes: 10, FaultyNodes: 1}}, Healthy, ""},
		"leftovers rise":               {Inputs{Now: Counts{Leftovers: 3}, Then: Counts{Leftovers: 2}, Compared: true}, Warning, "pods that stay in Terminating rose from 2 to 3 in 10m0s"},
		"leftovers stay":               {Inputs{Now: Counts{Leftovers: 2}, Then: Counts{Leftovers: 2}, Compared: true}, Healthy, ""},
		"an alert":                     {Inputs{Alerts: []Alert{{"EtcdSlow", Fatal}, {"Info", ""}}}, Fatal, "alert EtcdSlow is firing"},
		"blind, whatever is seen else": {Inputs{Blind: "the watch has ended", Offline: api}, Unknown, "the watch has ended"},
	} {
		level, causes := Judge(c.in)
		if level != c.want || c.text == "" != (len(causes) == 0) || c.text != "" && causes[0].Text != c.text {
			t.Errorf("%s: %s %v", name, level, causes)
		}
	}
}

// A worse level counts at once, a better one only when it has lasted; blindness begins and ends at once.
func TestTracker(t *testing.T) {
	var tracker Tracker
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var got []Level
	for _, step := range []struct {
		after   time.Duration
		success float64
		blind   string
	}{
		{0, 1, ""}, {time.Second, 0.5, ""}, {2 * time.Second, 1, ""}, {time.Minute, 0.98, ""}, {90 * time.Second, 0.5, ""}, {2 * time.Minute, 1, ""},
		{3 * time.Minute, 1, ""}, {4 * time.Minute, 1, ""}, {5 * time.Minute, 1, "no list yet"}, {5*time.Minute + time.Second, 1, ""},
	} {
		got = append(got, tracker.Take(Inputs{Creation: success(step.success), Blind: step.blind}, start.Add(step.after)).Level)
	}
	if want := []Level{Healthy, Fatal, Fatal, Fatal, Fatal, Fatal, Fatal, Healthy, Unknown, Healthy}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestTrend(t *testing.T) {
	var tracker Tracker
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	warned := -1
	for minute := range 25 {
		now := Counts{}
		if minute >= 5 {
			now.Leftovers = 1
		}
		state := tracker.Take(Inputs{Now: now}, start.Add(time.Duration(minute)*time.Minute))
		if state.Level == Warning && warned < 0 {
			warned = minute
		}
		if minute == 24 && state.Level != Healthy {
			t.Errorf("a count that no longer rises: %+v", state)
		}
	}
	if warned != 10 {
		t.Errorf("warned at %d: compared with ten minutes ago, not earlier", warned)
	}
}
