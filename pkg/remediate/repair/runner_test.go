package repair

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// "Done" is not enough: a repair counts when the check has not found the fault for the hold time.
func TestRepairIsVerified(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(w *world)
		want    string
	}{
		"it helps":    {func(*world) {}, "finish verified"},
		"it does not": {func(w *world) { w.faulty = func() bool { return true } }, "finish failed: the fault is still there after 2m"},
		"it fails, and all is well": {func(w *world) {
			w.does = func(context.Context) error { return errOutage }
		}, "finish verified: no answer"},
		"it helps for a minute": {func(w *world) {
			since := time.Time{}
			w.does = func(context.Context) error { since = time.Now(); return nil }
			w.faulty = func() bool { return since.IsZero() || time.Since(since) > time.Minute }
		}, "finish failed: the fault was gone, and is back after 1m"},
		"it helps for all but the last moment": {func(w *world) {
			since := time.Time{}
			w.does = func(context.Context) error { since = time.Now(); return nil }
			w.faulty = func() bool { return since.IsZero() || time.Since(since) > 5*time.Minute-5*time.Second }
		}, "finish failed: the fault was gone, and is back"},
		"nobody can tell": {func(w *world) {
			w.does = func(context.Context) error { w.blind = errOutage; return nil }
		}, "finish could-not-tell: cannot tell whether it helped: no answer"},
		"nobody can tell for a while": {func(w *world) {
			w.does = func(context.Context) error {
				w.blind, w.sees = errOutage, time.Now().Add(time.Minute)
				return nil
			}
		}, "finish verified"},
		"it hangs": {func(w *world) {
			w.faulty = func() bool { return true }
			w.does = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}, "finish failed: the fault is still there after 2m0s; the step reported: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				test.prepare(w)
				w.round(t.Context())
				w.expect(1, test.want)
				if !contains(w.reported, "action-started") {
					t.Errorf("told %q", w.reported)
				}
			})
		})
	}
}

// One occurrence is repaired once, others within the budgets; this survives a restart of the agent.
func TestLadderAndBudgets(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.action.Once = true
		w.settings.RetryAfter, w.settings.StopAfter = time.Minute, 100
		w.faulty = func() bool { return true }
		w.round(t.Context())
		w.expect(1, "finish failed")
		time.Sleep(3 * time.Hour)
		if why := w.round(t.Context()); !strings.Contains(why, "needs help: it was done once already") {
			t.Errorf("%q", why)
		}
		w.refusal = "the container that hung is gone"
		if why := w.round(t.Context()); !strings.HasPrefix(why, "needs help") {
			t.Errorf("what would be refused now hides that it is a person's: %q", why)
		}
		w.refusal = ""
		w.fault("b")
		w.round(t.Context())
		w.expect(2, "finish failed")
		time.Sleep(3 * time.Hour)
		w.fault("c")
		if why := w.round(t.Context()); !strings.Contains(why, "budget: cure was done 2 times in the last day") {
			t.Errorf("%q", why)
		}
		w.action.PerDay, w.settings.PerHour = nil, 2
		w.round(t.Context())
		w.fault("d")
		time.Sleep(5 * time.Minute)
		w.round(t.Context())
		w.fault("e")
		time.Sleep(10 * time.Minute)
		if why := w.round(t.Context()); !strings.Contains(why, "budget: 2 repairs in the last hour") || w.done != 4 {
			t.Errorf("%q, %d", why, w.done)
		}
		w.settings.PerHour, w.settings.PerDay = 100, 4
		if why := w.round(t.Context()); !strings.Contains(why, "budget: 4 repairs in the last day") {
			t.Errorf("%q", why)
		}
		time.Sleep(25 * time.Hour)
		w.fault("f")
		w.round(t.Context())
		w.expect(5, "finish failed")
	})
}

// Each failure doubles the wait until the next try; too many within a day stop all repairs, which is a finding.
func TestFailuresStopEverything(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.action.PerDay, w.settings.PerDay = nil, 100
		w.faulty = func() bool { return true }
		for try := range 3 {
			if why := w.round(t.Context()); why != "" {
				t.Fatalf("%d: %q", try, why)
			}
			wait := w.settings.RetryAfter << try
			time.Sleep(wait - 3*time.Minute)
			if try < 2 {
				if why := w.round(t.Context()); !strings.Contains(why, "next try after "+wait.String()) {
					t.Errorf("%q, want %s", why, wait)
				}
			}
			time.Sleep(3 * time.Minute)
		}
		w.expect(3, "finish failed")
		if why := w.round(t.Context()); !strings.Contains(why, "3 repairs have failed within a day") {
			t.Errorf("%q", why)
		}
		found := w.runner().Findings()
		if len(found) != 1 || found[0].Reason != reasonStopped {
			t.Errorf("%+v", found)
		}
		time.Sleep(25 * time.Hour)
		w.faulty = func() bool { return w.done == 3 }
		w.round(t.Context())
		w.expect(4, "finish verified")
		if found := w.runner().Findings(); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	})
}

// A repair that did not help is a finding while the fault is believed.
func TestDidNotHelpIsAFinding(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.faulty = func() bool { return true }
		w.round(t.Context())
		r := w.runner()
		b := w.believed
		r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}}, nil)
		if found := r.Findings(); len(found) != 1 || found[0].Reason != reasonNoHelp ||
			found[0].SuggestedAction != finding.SuggestHuman ||
			!strings.Contains(found[0].Message, "the fault is still there") {
			t.Errorf("%+v", found)
		}
		r.Update(finding.State{}, nil)
		if found := r.Findings(); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	})
}

// If the agent dies at any point, the next one does not repeat the step: ladder and budgets count the intent.
func TestCrashAnywhere(t *testing.T) {
	for point, done := range map[string]int{"repair intent: cure": 0, "repair done: cure": 1, "repair end: cure": 1} {
		t.Run(point, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.action.Once = true
				w.faulty = func() bool { return true }
				hit := false
				w.options = func(o *Options) {
					o.faultPoint = func(now string) error {
						if now == point && !hit {
							hit = true
							return errOutage
						}
						return nil
					}
				}
				w.round(t.Context())
				if !hit || w.done != done {
					t.Fatalf("hit %v, done %d times", hit, w.done)
				}
				time.Sleep(time.Hour)
				if why := w.round(t.Context()); !strings.Contains(why, "needs help: it was done once already") {
					t.Errorf("%q", why)
				}
				w.fault("b")
				w.round(t.Context())
				w.fault("c")
				time.Sleep(2 * time.Hour)
				if why := w.round(t.Context()); !strings.Contains(why, "budget: cure was done 2 times") {
					t.Errorf("%q", why)
				}
				if w.done != done+1 {
					t.Errorf("done %d times", w.done)
				}
			})
		})
	}
}

// On a disk that rejects writes, no step runs without an intent; a step that ran counts even if its end is lost.
func TestDiskFull(t *testing.T) {
	for event, done := range map[release.Event]int{release.Intent: 0, release.End: 1, release.Finish: 1} {
		t.Run(string(event), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.options = func(o *Options) {
					o.onWrite = func(r Record) error {
						if r.Event == event {
							return errors.New("no space left on device")
						}
						return nil
					}
				}
				w.settings.RestartsPerDay = 1
				w.faulty = func() bool { return true }
				if why := w.round(t.Context()); !strings.Contains(why, "no space left") || w.done != done {
					t.Errorf("%q, done %d times", why, w.done)
				}
				time.Sleep(2 * time.Hour)
				w.round(t.Context())
				if w.done != done {
					t.Errorf("done %d times", w.done)
				}
			})
		})
	}
}

// Run does a round when a new finding is believed, and ends with its context.
func TestRun(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		r, ended := w.runner(), make(chan error)
		go func() { ended <- r.Run(ctx) }()
		r.Update(finding.State{}, nil)
		time.Sleep(time.Hour)
		observed := w.observed
		b := w.believed
		r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}},
			[]finding.Update{{Kind: finding.Raised}})
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		w.expect(1, "finish verified")
		if observed != 0 {
			t.Errorf("%d runs of the check at rest", observed)
		}
	})
}

func TestWindows(t *testing.T) {
	night := []Window{{Days: []string{"sat"}, From: "22:00", To: "06:00"}, {From: "12:00", To: "13:00"}}
	for at, open := range map[string]bool{
		"2026-03-07 21:59": false, "2026-03-07 22:00": true, "2026-03-08 05:59": true, "2026-03-08 06:00": false,
		"2026-03-08 23:00": false, "2026-03-07 05:00": false, "2026-03-10 12:00": true, "2026-03-10 13:00": false,
	} {
		moment, err := time.Parse("2006-01-02 15:04", at)
		if err != nil {
			t.Fatal(err)
		}
		if why := closedWindow(night, moment); (why == "") != open {
			t.Errorf("%s: %q", at, why)
		}
	}
	for _, w := range []Window{{Days: []string{"Saturday"}, From: "1:00", To: "2:00"}, {From: "25:00", To: "1:00"}, {}} {
		if w.Validate() == nil {
			t.Errorf("%v is valid", w)
		}
	}
}

// An action that comes after another waits until the other ran for this occurrence and failed.
func TestSecondRung(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.faulty = func() bool { return true }
		w.settings.StopAfter, w.settings.PerHour, w.settings.RetryAfter = 100, 100, time.Second
		w.action.Once, w.action.PerDay = true, nil
		first := w.action
		second := first
		second.Name, second.After = "cure-more", "cure"
		w.settings.Actions["cure-more"] = release.On
		w.action = second
		if why := w.round(t.Context()); why != "waiting: cure comes first, and must have failed" {
			t.Errorf("%q", why)
		}
		w.action = first
		w.round(t.Context())
		w.expect(1, "finish failed")
		w.fault("b")
		w.action = second
		if why := w.round(t.Context()); !strings.HasPrefix(why, "waiting: cure comes first") {
			t.Errorf("another occurrence: %q", why)
		}
		w.action = first
		w.round(t.Context())
		w.action = second
		w.round(t.Context())
		w.expect(3, "finish failed")
		time.Sleep(2 * time.Hour)
		if why := w.round(t.Context()); !strings.HasPrefix(why, "needs help: it was done once already") {
			t.Errorf("%q", why)
		}
	})
}

// If the first rung helped, the second is not done.
func TestSecondRungAfterHelp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.round(t.Context())
		w.expect(1, "finish verified")
		w.action.Name, w.action.After = "cure-more", "cure"
		w.settings.Actions["cure-more"] = release.On
		w.faulty = func() bool { return true }
		if why := w.round(t.Context()); !strings.HasPrefix(why, "waiting: cure comes first") || w.done != 1 {
			t.Errorf("%q", why)
		}
	})
}

// The interval between two runs holds whatever the result: also after a success, and for another fault.
func TestInterval(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.action.Every = time.Hour
		w.round(t.Context())
		w.expect(1, "finish verified")
		w.faulty = func() bool { return w.done == 1 }
		w.fault("b")
		if why := w.round(t.Context()); !strings.Contains(why, "at most once in 1h0m0s") || w.done != 1 {
			t.Errorf("%q", why)
		}
		time.Sleep(time.Hour)
		w.round(t.Context())
		w.expect(2, "finish verified")
	})
}

// An action with a settle time gets more time to show its effect, and asks for its slot for as long.
func TestSettle(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := &slots{}
		w.settings.FleetBudget = Claims
		w.options = func(o *Options) { o.Slots = s }
		w.action.Settle = 10 * time.Minute
		since := time.Time{}
		w.does = func(context.Context) error { since = time.Now(); return nil }
		w.faulty = func() bool { return since.IsZero() || time.Since(since) < 11*time.Minute }
		w.round(t.Context())
		w.expect(1, "finish verified")
		if s.atMost < 17*time.Minute {
			t.Errorf("a slot for %s", s.atMost)
		}
	})
}
