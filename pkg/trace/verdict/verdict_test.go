package verdict

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

const promised = time.Minute

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func at(s float64) record.Mark {
	return record.Mark{Source: record.Own, Arrival: start.Add(seconds(s))}
}

// pod is a creation with marks, in seconds after it.
func pod(always bool, marks map[record.Point]float64) *record.Timeline {
	t := &record.Timeline{Act: record.Creation, UID: "u", RestartAlways: always, Node: "n", Containers: []record.Container{{Name: "c"}}}
	t.Set(record.Created, at(0))
	for p, s := range marks {
		t.Set(p, at(s))
	}
	return t
}

func with(t *record.Timeline, change func(*record.Timeline)) *record.Timeline {
	change(t)
	return t
}

func removal(grace float64, marks map[record.Point]float64) *record.Timeline {
	t := pod(true, marks)
	t.Act, t.Grace = record.Deletion, seconds(grace)
	t.Set(record.DeleteRequested, at(0))
	return t
}

type marks = map[record.Point]float64

func TestEdges(t *testing.T) {
	hook := func(from, shown, ready float64) *record.Timeline {
		return with(pod(true, marks{record.Scheduled: 1, record.KubeletSaw: 1, record.Ready: ready}), func(t *record.Timeline) {
			t.Containers[0].Hook, t.Containers[0].Started, t.Containers[0].Shown = true, at(from), at(shown)
		})
	}
	gated := func(ungated, ready float64) *record.Timeline {
		return with(pod(true, marks{record.Ungated: ungated, record.Ready: ready}), func(t *record.Timeline) { t.Gated = true })
	}
	tests := map[string]struct {
		timeline *record.Timeline
		now      float64
		want     Outcome
	}{
		"deleted before it is ready": {pod(true, marks{record.DeleteRequested: 30, record.Ready: 30.5}), 31, Excluded},
		"deleted when it is ready":   {pod(true, marks{record.Ready: 30, record.DeleteRequested: 30.5}), 31, Delivered},
		"late, deleted before ready": {pod(true, marks{record.DeleteRequested: 70, record.Ready: 80}), 81, Missed},
		"ready at 59.9":              {pod(true, marks{record.Ready: 59.9}), 60, Delivered},
		"ready at 60.1":              {pod(true, marks{record.Ready: 60.1}), 61, Missed},
		"not yet":                    {pod(true, nil), 59, Open},
		"never":                      {pod(true, nil), 60.1, Missed},
		"hook of 50, 30 of others":   {hook(10, 60, 80), 80, Delivered},
		"hook of 20, 65 of others":   {hook(10, 30, 85), 85, Missed},
		"job runs":                   {pod(false, marks{record.Running: 30}), 31, Delivered},
		"job failed after start":     {pod(false, marks{record.Running: 30}), 90, Delivered},
		"job refused by its node":    {pod(false, marks{record.Failed: 3}), 4, Missed},
		"refused, deleted later":     {pod(true, marks{record.Failed: 3, record.DeleteRequested: 5, record.Gone: 6}), 7, Missed},
		"gate opened after 10 min":   {gated(600, 630), 630, Delivered},
		"gate opened, then late":     {gated(600, 661), 661, Missed},
		"gated still":                {with(pod(true, nil), func(t *record.Timeline) { t.Gated = true }), 3600, Open},
		"gated until deleted":        {with(pod(true, marks{record.DeleteRequested: 900}), func(t *record.Timeline) { t.Gated = true }), 901, Excluded},
		"deleted at 30":              {pod(true, marks{record.DeleteRequested: 30}), 31, Excluded},
		"deleted at 30, seen at 90":  {pod(true, marks{record.DeleteRequested: 30, record.Gone: 31}), 90, Excluded},
		"preempted at 30":            {with(pod(true, marks{record.DeleteRequested: 30}), func(t *record.Timeline) { t.Disruption = "PreemptionByScheduler" }), 31, Missed},
		"static":                     {with(pod(true, nil), func(t *record.Timeline) { t.Exclude = "static pod" }), 300, Excluded},
		"begin not seen":             {&record.Timeline{Act: record.Upgrade}, 5, Unknown},
		"grace of 300, used 290":     {removal(300, marks{record.KillNoticed: 1, record.ContainersEnded: 291, record.Gone: 295}), 295, Delivered},
		"grace of 30, used 100":      {removal(30, marks{record.KillNoticed: 1, record.ContainersEnded: 101, record.Gone: 102}), 102, Missed},
		"grace of 300, still":        {removal(300, marks{record.KillNoticed: 1}), 359, Open},
		"grace of 300, over":         {removal(300, marks{record.KillNoticed: 1}), 362, Missed},
		"deletion not noticed":       {removal(30, nil), 61, Missed},
		"no Events, may be stopping": {with(removal(30, nil), func(t *record.Timeline) { t.NoEvents = true }), 85, Open},
		"no Events, gone at 80":      {with(removal(30, marks{record.Gone: 80}), func(t *record.Timeline) { t.NoEvents = true }), 80, Unknown},
		"no Events, gone at 50":      {with(removal(30, marks{record.Gone: 50}), func(t *record.Timeline) { t.NoEvents = true }), 50, Delivered},
		"no Events, grace is over":   {with(removal(30, nil), func(t *record.Timeline) { t.NoEvents = true }), 91, Missed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			now := start.Add(seconds(tt.now))
			if got := Judge(tt.timeline, promised, now, now); got.Outcome != tt.want {
				t.Errorf("%+v, want %q", got, tt.want)
			}
		})
	}
}

// The node's clock is off by five minutes, the apiserver's by two seconds: the verdict stays the same.
func TestClocks(t *testing.T) {
	for _, node := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
		for _, server := range []time.Duration{0, 2 * time.Second, -2 * time.Second} {
			for ready, want := range map[float64]Outcome{59.9: Delivered, 60.1: Missed} {
				timeline := &record.Timeline{Act: record.Creation, RestartAlways: true}
				timeline.Set(record.Created, record.Mark{Time: start.Add(server), Source: record.APIServer, Arrival: start})
				shown := start.Add(seconds(ready))
				timeline.Set(record.Ready, record.Mark{Time: shown.Add(node).Truncate(time.Second), Source: record.Node, Arrival: shown})
				got := Judge(timeline, promised, shown, shown)
				if got.Outcome != want || got.Judged.Low < 0 {
					t.Errorf("node %v, apiserver %v, ready %v: %+v", node, server, ready, got)
				}
			}
		}
	}
}

// A late arrival is an upper bound: the node's time decides if its clock was measured, otherwise only cases that are
// certain get a verdict.
func TestLate(t *testing.T) {
	judge := func(readyAt, arrival float64, skews map[record.Clock]time.Duration) Outcome {
		timeline := pod(true, nil)
		timeline.Skews = skews
		timeline.Set(record.Ready, record.Mark{Time: start.Add(seconds(readyAt)), Source: record.Node, Arrival: start.Add(seconds(arrival)), Late: true})
		now := start.Add(seconds(arrival))
		return Judge(timeline, promised, now, now).Outcome
	}
	measured := map[record.Clock]time.Duration{record.Node: -300 * time.Second}
	for name, tt := range map[string]struct {
		got, want Outcome
	}{
		"in time anyway":              {judge(20, 50, nil), Delivered},
		"not measured":                {judge(20, 90, nil), Unknown},
		"not measured, clearly late":  {judge(80, 90, nil), Unknown},
		"measured, in time":           {judge(320, 90, measured), Delivered},
		"measured, late":              {judge(370, 90, measured), Missed},
		"measured, too close to tell": {judge(360, 90, measured), Unknown},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", name, tt.got, tt.want)
		}
	}
	// Without the Event of its start, a container with a hook is shown after the hook: the node's time is its start.
	hook := func(skews map[record.Clock]time.Duration, startedAt float64) Outcome {
		timeline := pod(true, marks{record.Scheduled: 1, record.KubeletSaw: 1, record.Ready: 80})
		timeline.Skews, timeline.Containers[0].Hook = skews, true
		timeline.Containers[0].Started = record.Mark{Time: start.Add(seconds(startedAt)), Source: record.Node, Arrival: at(70).Arrival, Late: true}
		timeline.Containers[0].Shown = at(70)
		return Judge(timeline, promised, start.Add(time.Hour), start.Add(time.Hour)).Outcome
	}
	if a, b, c := hook(measured, 310), hook(measured, 365), hook(nil, 10); a != Delivered || b != Missed || c != Unknown {
		t.Errorf("hooks: %q, %q, %q", a, b, c)
	}
	// A creation first seen in a list is at least as old as the list.
	timeline := &record.Timeline{Act: record.Creation, RestartAlways: true}
	timeline.Set(record.Created, record.Mark{Time: start, Source: record.APIServer, Arrival: start.Add(time.Second), Late: true})
	timeline.Set(record.Ready, at(30))
	if got := Judge(timeline, promised, start.Add(time.Hour), start.Add(time.Hour)); got.Outcome != Unknown {
		t.Errorf("created at an unknown time: %+v", got)
	}
}

// A miss waits for the watch.
func TestWatchBehind(t *testing.T) {
	behind := pod(true, nil)
	now := start.Add(10 * time.Minute)
	if got := Judge(behind, promised, now, start.Add(40*time.Second)); got.Outcome != Open {
		t.Errorf("the watch is behind: %+v", got)
	}
	if got := Judge(behind, promised, now, start.Add(61*time.Second)); got.Outcome != Missed {
		t.Errorf("the watch has shown everything until T: %+v", got)
	}
}

// In whatever order observations arrive: a pod ready in time is never missed, and no verdict changes later.
func TestNoDeliveredPodIsMissed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		second := rapid.Float64Range(0, 200)
		truth := second.Draw(rt, "ready")
		timeline := pod(rapid.Bool().Draw(rt, "always"), nil)
		skew := time.Duration(rapid.IntRange(-600, 600).Draw(rt, "skew")) * time.Second
		if rapid.Bool().Draw(rt, "measured") {
			timeline.Skews = map[record.Clock]time.Duration{record.Node: -skew}
		}
		late := rapid.Bool().Draw(rt, "late")
		arrival := start.Add(seconds(truth))
		m := record.Mark{Time: arrival.Add(skew).Truncate(time.Second), Source: record.Node, Arrival: arrival, Late: late}
		if late {
			m.Arrival = arrival.Add(seconds(second.Draw(rt, "delay")))
		}
		timeline.Set(record.Ready, m)
		timeline.Set(record.Running, m)
		if rapid.Bool().Draw(rt, "hook") {
			timeline.Containers[0].Hook = true
			timeline.Containers[0].Started = at(truth * rapid.Float64Range(0, 1).Draw(rt, "started"))
			timeline.Containers[0].Shown = m
		}
		var first Outcome
		for _, after := range []time.Duration{0, time.Second, time.Hour} {
			now := m.Arrival.Add(after)
			got := Judge(timeline, promised, now, now)
			if got.Outcome == Open {
				rt.Fatalf("an act that has ended has no verdict: %+v", got)
			}
			if got.Outcome == Missed && truth <= promised.Seconds() {
				rt.Fatalf("ready after %v s, but missed: %+v", truth, got)
			}
			if got.Outcome == Delivered && truth > promised.Seconds()+got.User.Seconds()+0.001 {
				rt.Fatalf("ready after %v s, but delivered: %+v", truth, got)
			}
			if first != "" && got.Outcome != first {
				rt.Fatalf("%q became %q", first, got.Outcome)
			}
			first = got.Outcome
		}
	})
}
