package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// newFailing is a node with a cgroup for each of some pods, none of which can be removed.
func newFailing(t *testing.T, pods int) *script {
	s := newScript(t)
	s.settings.PodsPerHour, s.there = 100, nil
	for n := range pods {
		uid := strings.Replace(uid1, "1", fmt.Sprint(n), 1)
		o := leftover(object.Cgroup, uid, fmt.Sprint("c", n))
		s.there = append(s.there, o)
		s.do[o.ID] = func(context.Context) error { return errScript }
	}
	return s
}

func (s *script) after(d time.Duration) { s.clock.SinceBoot += d }

// blocked returns a release's reasons for the objects it did not touch, and for the whole.
func (s *script) blocked() (steps []string, stopped string) {
	s.t.Helper()
	outcome, err := s.release()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pod := range outcome.Pods {
		if pod.Result == NotActed {
			steps = append(steps, pod.Why)
		}
	}
	return steps, outcome.Stopped
}

func (s *script) expectDone(n int, why string) {
	s.t.Helper()
	if got := s.count("do "); got != n {
		s.t.Errorf("%s: %d changes, want %d\n%s", why, got, n, s)
	}
}

// After three failed pods in a row, releases stop. That is a finding, and it survives the agent. It ends after a day,
// or when a person releases a pod.
func TestFailuresStopReleases(t *testing.T) {
	s := newFailing(t, 5)
	const why = "3 pods in a row have failed within a day"
	steps, stopped := s.blocked()
	if len(steps) != 2 || !strings.Contains(steps[0], why) || !strings.Contains(stopped, why) {
		t.Errorf("%q %q", steps, stopped)
	}
	s.expectDone(3, "the row")
	s.after(2 * time.Hour)
	r := s.runner() // after a restart
	if _, err := r.Release(t.Context(), s.report()); err != nil {
		t.Error(err)
	}
	found := r.Findings()
	if len(found) != 1 || found[0].Reason != "ReleasesStopped" || !strings.Contains(found[0].Message, why) ||
		found[0].SuggestedAction != finding.SuggestHuman {
		t.Errorf("%+v", found)
	}
	s.expectDone(3, "stopped")

	s.after(23 * time.Hour)
	s.blocked()
	s.expectDone(6, "a day later: the next three")

	s.after(2 * time.Hour)
	s.settings.Attended, s.do = true, nil
	if steps, stopped := s.blocked(); len(steps) > 0 || stopped != "" || len(s.there) > 0 {
		t.Errorf("a person releases: %q %q", steps, stopped)
	}
	s.settings.Attended = false
	r = s.runner()
	if _, err := r.Release(t.Context(), s.report()); err != nil || len(r.Findings()) > 0 {
		t.Errorf("%v, %+v", err, r.Findings())
	}
}

// One pod that cannot be released is left alone after three failures, and the others are released.
func TestFailuresOfOnePod(t *testing.T) {
	s := newFailing(t, 2)
	delete(s.do, "c1")
	s.settings.RetryAfter = 0
	s.blocked()
	for range 4 {
		s.after(2 * time.Hour)
		s.blocked()
	}
	s.expectDone(4, "three times the one, once the other")
	steps, stopped := s.blocked()
	if len(steps) != 1 || !strings.Contains(steps[0], "3 releases of this pod have failed") || stopped != "" {
		t.Errorf("%q %q", steps, stopped)
	}
	s.after(24 * time.Hour)
	s.blocked()
	s.expectDone(5, "a day later")
}

// Only an act that is not known to have helped is a failure, and only an act that helped ends a row.
func TestWhatCountsAsFailure(t *testing.T) {
	for name, test := range map[string]struct {
		result Result
		steps  []Result
		want   bool
	}{
		"a step failed":                    {Incomplete, []Result{Released, Failed}, true},
		"a step is not known":              {CouldNotTell, []Result{CouldNotTell}, true},
		"the rest is not known":            {CouldNotTell, []Result{Released, Stopped}, true},
		"nothing was done":                 {CouldNotTell, []Result{Stopped}, false},
		"refused":                          {Incomplete, []Result{Released, Refused}, false},
		"blocked":                          {Incomplete, []Result{Blocked}, false},
		"stopped by a guard":               {Stopped, []Result{Released, Failed}, false},
		"the agent ended":                  {Interrupted, []Result{Released, Stopped}, false},
		"released, a step failed at first": {Released, []Result{Released, Failed}, false},
	} {
		p := podRelease{outcome: PodOutcome{Result: test.result}}
		for _, result := range test.steps {
			p.outcome.Steps = append(p.outcome.Steps, StepOutcome{Result: result})
		}
		if got := p.failed(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	p := podRelease{outcome: PodOutcome{Result: Incomplete, Steps: []StepOutcome{{Result: Failed, unbegun: true}}}}
	if p.failed() {
		t.Error("a step that was not begun counts as a failure")
	}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"not asked":   {mutate.NotBegun{Err: errors.New("no answer")}, true},
		"no child":    {mutate.ErrTooManyAbandoned, true},
		"busy":        {mutate.ErrBusy, false},
		"it failed":   {errors.New("no answer"), false},
		"it was done": {nil, false},
	} {
		if got := wasNotBegun(test.err); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	pod := func(group string, acted, failed bool, result Result) []Record {
		records := []Record{{Event: Begin, Group: group, At: now}}
		if acted {
			records = append(records, Record{Event: Intent, Group: group, At: now})
		}
		return append(records, Record{Event: Finish, Group: group, Result: result, Failed: failed, At: now})
	}
	for name, test := range map[string]struct {
		last []Record
		want int
	}{
		"none":                  {nil, 2},
		"another":               {pod("c", true, true, Incomplete), 3},
		"one of them again":     {pod("a", true, true, Incomplete), 2},
		"released":              {pod("c", true, false, Released), 0},
		"gone by itself":        {pod("c", false, false, Released), 2},
		"released, after a row": {append(pod("c", true, false, Released), pod("d", true, true, Incomplete)...), 1},
		"stopped":               {pod("c", true, false, Stopped), 2},
	} {
		records := append(pod("a", true, true, Incomplete), pod("b", true, true, CouldNotTell)...)
		if got := failedInARow(append(records, test.last...)); len(got) != test.want {
			t.Errorf("%s: %d, want %d", name, len(got), test.want)
		}
	}
}

// An unreadable journal is reported: without it no release runs.
func TestUnreadableJournalIsAFinding(t *testing.T) {
	s := newScript(t)
	r := s.runner()
	if r.Findings() != nil {
		t.Error(r.Findings())
	}
	if err := os.MkdirAll(filepath.Join(r.options.StateDir, journalName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Release(t.Context(), s.report()); err == nil || len(r.Findings()) != 1 {
		t.Errorf("%v %+v", err, r.Findings())
	}
}
