package stage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
)

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

func at(s int) record.Mark {
	return record.Mark{Source: record.Own, Arrival: start.Add(time.Duration(s) * time.Second)}
}

func spent(t *record.Timeline, now int) map[ID]int {
	found := map[ID]int{}
	for _, s := range Of(t, start.Add(time.Duration(now)*time.Second)) {
		found[s.ID] = int(s.Spent.Middle() / time.Second)
		if s.Spent.Low < 0 {
			found[s.ID] = -1
		}
	}
	return found
}

func TestCreation(t *testing.T) {
	timeline := &record.Timeline{Act: record.Creation, RestartAlways: true, Gated: true, ReadinessGates: []string{"g"},
		Containers: []record.Container{{Name: "i", Init: true, Started: at(20)}, {Name: "a", Hook: true, Started: at(40), Shown: at(50)},
			{Name: "b", Started: at(48)}},
		Pulls: []record.Pull{{Container: "a", Began: at(25), Ended: at(35)}, {Container: "b", Began: at(30), Ended: at(38)}}}
	for p, s := range map[record.Point]int{record.Created: 0, record.Ungated: 5, record.Scheduled: 7, record.KubeletSaw: 8, record.SandboxReady: 15,
		record.Initialized: 24, record.ContainersReady: 60, record.Ready: 66} {
		timeline.Set(p, at(s))
	}
	want := map[ID]int{Gated: 5, Schedule: 2, Notice: 1, Sandbox: 7, Pull: 13, Init: 4, Start: 13, PostStart: 8, BecomeReady: 12, ReadinessGate: 6}
	if diff := cmp.Diff(want, spent(timeline, 70)); diff != "" {
		t.Error(diff)
	}
}

// Gaps between intervals do not count, and an open interval lasts until now.
func TestPullsAreUnited(t *testing.T) {
	timeline := &record.Timeline{Act: record.Creation, Pulls: []record.Pull{{Container: "b", Began: at(20)}, {Container: "a", Began: at(1), Ended: at(4)},
		{Container: "c", Began: at(2), Ended: at(6)}}}
	timeline.Set(record.Created, at(0))
	if got := spent(timeline, 30)[Pull]; got != 15 {
		t.Errorf("%d s, want 5 and 10", got)
	}
	for _, s := range Of(timeline, start.Add(30*time.Second)) {
		if s.ID == Pull && !s.Open() {
			t.Error("one pull has not ended")
		}
	}
}

func TestDeletionAndUpgrade(t *testing.T) {
	timeline := &record.Timeline{Act: record.Deletion, Node: "n", Finalizers: []string{"f"}}
	for p, s := range map[record.Point]int{record.DeleteRequested: 0, record.KillNoticed: 1, record.ContainersEnded: 30} {
		timeline.Set(p, at(s))
	}
	if diff := cmp.Diff(map[ID]int{Noticed: 1, Stop: 29, Finalizers: 10}, spent(timeline, 40)); diff != "" {
		t.Error(diff)
	}
	timeline = &record.Timeline{Act: record.Upgrade, Node: "n"}
	for p, s := range map[record.Point]int{record.ChangeAccepted: 0, record.ChangeNoticed: 2, record.OldEnded: 9, record.NewStarted: 11} {
		timeline.Set(p, at(s))
	}
	if diff := cmp.Diff(map[ID]int{ChangeSeen: 2, OldStop: 7, NewRun: 2, ReadyAgain: 9}, spent(timeline, 20)); diff != "" {
		t.Error(diff)
	}
}

// Clocks that differ by minutes never make a stage negative.
func TestClocks(t *testing.T) {
	timeline := &record.Timeline{Act: record.Creation, Containers: []record.Container{{Name: "a"}}}
	moment := func(clock record.Clock, off time.Duration, s int) record.Mark {
		m := at(s)
		return record.Mark{Time: m.Arrival.Add(off).Truncate(time.Second), Source: clock, Arrival: m.Arrival}
	}
	for _, node := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
		timeline.Marks = nil
		timeline.Set(record.Created, moment(record.APIServer, 2*time.Second, 0))
		timeline.Set(record.Scheduled, moment(record.Scheduler, -time.Minute, 1))
		timeline.Set(record.KubeletSaw, moment(record.Node, node, 3))
		timeline.Set(record.SandboxReady, moment(record.Node, node, 9))
		if diff := cmp.Diff(map[ID]int{Schedule: 1, Notice: 2, Sandbox: 6}, spent(timeline, 10)); diff != "" {
			t.Errorf("node %v: %s", node, diff)
		}
	}
}

// Without Events and without the sandbox condition, the containers' statuses prove the pod's progress.
func TestStagesFollowFromStatuses(t *testing.T) {
	init := record.Container{Name: "i", Init: true}
	tests := map[string]struct {
		containers []record.Container
		pulls      []record.Pull
		want       ID // the deepest open one
	}{
		"no status":                  {[]record.Container{{Name: "a"}}, nil, Sandbox},
		"pull":                       {[]record.Container{{Name: "a"}}, []record.Pull{{Container: "a", Began: at(5)}}, Pull},
		"pull of init":               {[]record.Container{init, {Name: "a"}}, []record.Pull{{Container: "i", Began: at(5)}}, Pull},
		"create":                     {[]record.Container{{Name: "a", Imaged: at(5)}}, nil, Start},
		"create after a pull":        {[]record.Container{{Name: "a", Imaged: at(9)}}, []record.Pull{{Container: "a", Began: at(5)}}, Start},
		"create of init":             {[]record.Container{{Name: "i", Init: true, Imaged: at(5)}, {Name: "a"}}, nil, Start},
		"init runs":                  {[]record.Container{{Name: "i", Init: true, Imaged: at(5), Started: at(5)}, {Name: "a"}}, nil, Init},
		"started":                    {[]record.Container{{Name: "a", Imaged: at(5), Started: at(5)}}, nil, BecomeReady},
		"started after a pull":       {[]record.Container{{Name: "a", Started: at(9)}}, []record.Pull{{Container: "a", Began: at(5)}}, BecomeReady},
		"one started, another pulls": {[]record.Container{{Name: "a", Started: at(4)}, {Name: "b"}}, []record.Pull{{Container: "b", Began: at(5)}}, Pull},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			timeline := &record.Timeline{Act: record.Creation, RestartAlways: true, Containers: tt.containers, Pulls: tt.pulls}
			for p, s := range map[record.Point]int{record.Created: 0, record.Scheduled: 1, record.KubeletSaw: 2} {
				timeline.Set(p, at(s))
			}
			var deepest ID
			for _, s := range Of(timeline, start.Add(time.Minute)) {
				if s.Open() && s.ID > deepest {
					deepest = s.ID
				}
				if s.ID == Sandbox && s.Open() != (tt.want == Sandbox) {
					t.Errorf("sandbox is open: %v", s.Open())
				}
				if s.ID == Pull && s.Open() != (tt.want == Pull) {
					t.Errorf("pull is open: %v", s.Open())
				}
			}
			if deepest != tt.want {
				t.Errorf("%s is open, want %s", deepest, tt.want)
			}
		})
	}
}

// An upgrade that cannot pull its new image has not begun to create the container.
func TestUpgradePulls(t *testing.T) {
	timeline := &record.Timeline{Act: record.Upgrade, Containers: []record.Container{{Name: "a"}}, Pulls: []record.Pull{{Container: "a", Began: at(5)}}}
	for p, s := range map[record.Point]int{record.ChangeAccepted: 0, record.ChangeNoticed: 2, record.OldEnded: 4} {
		timeline.Set(p, at(s))
	}
	if diff := cmp.Diff(map[ID]int{ChangeSeen: 2, OldStop: 2, NewPull: 15}, spent(timeline, 20)); diff != "" {
		t.Error(diff)
	}
}
