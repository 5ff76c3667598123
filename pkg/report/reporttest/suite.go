package reporttest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Check is the check of the findings in this suite.
const Check = "suite-check"

// Subject is a reporter under test.
type Subject struct {
	Reporter report.Reporter
	Sink     *Fault // nil: the reporter has no sink that can fail
	// Reports returns the reasons that the sink shows or has received.
	Reports func() []string
	Edge    bool // it also keeps ended faults
}

// Behaviour runs the suite. It calls newSubject inside a synctest bubble.
func Behaviour(t *testing.T, newSubject func(t *testing.T) Subject) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s Subject)
	}{
		{"update does not block while the sink hangs", updateDoesNotBlock},
		{"update does not block when nothing runs", updateWithoutRun},
		{"run ends with its context while the sink hangs", runEnds},
		{"the newest state wins after an outage", newestWins},
		{"a state is neither modified nor kept", stateIsNotKept},
		{"activities are reported once after an outage", activitiesSurvive},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.run(t, newSubject(t)) })
			goleak.VerifyNone(t)
		})
	}
}

// Start runs a reporter until the returned function is called. That waits for the reporter and fails the test if it
// takes more than five seconds. Use it inside a bubble.
func Start(t *testing.T, r report.Reporter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run of %s: %v", r.Name(), err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("run of %s took %s to end", r.Name(), took)
		}
	}
	t.Cleanup(stop)
	return stop
}

func (s Subject) disturb(err error) {
	switch {
	case s.Sink == nil:
	case err == nil:
		s.Sink.Hang()
	default:
		s.Sink.Fail(err)
	}
}

func (s Subject) mend() {
	if s.Sink != nil {
		s.Sink.Mend()
	}
}

func updateDoesNotBlock(t *testing.T, s Subject) {
	w := NewWorld()
	s.disturb(nil)
	stop := Start(t, s.Reporter)
	defer stop()
	began := time.Now()
	for i := range 3000 {
		s.Reporter.Update(w.Run(Check, nil, reason(i)))
	}
	// The clock of a bubble advances only when all goroutines in it are blocked.
	if took := time.Since(began); took != 0 {
		t.Errorf("update waited for %s", took)
	}
	time.Sleep(time.Minute) // of the bubble's clock: the sink is called and hangs
	began = time.Now()
	s.Reporter.Update(w.Run(Check, nil, "Another"))
	if took := time.Since(began); took != 0 {
		t.Errorf("update waited for %s while a call hung", took)
	}
}

func updateWithoutRun(t *testing.T, s Subject) {
	w := NewWorld()
	began := time.Now()
	for i := range 3000 {
		s.Reporter.Update(w.Run(Check, nil, reason(i)))
	}
	if took := time.Since(began); took != 0 {
		t.Errorf("update waited for %s", took)
	}
}

func runEnds(t *testing.T, s Subject) {
	w := NewWorld()
	s.disturb(nil)
	stop := Start(t, s.Reporter)
	s.Reporter.Update(w.Run(Check, nil, "Broken"))
	time.Sleep(5 * time.Second)
	stop() // measures; the bubble itself fails the test if a goroutine is left
}

func newestWins(t *testing.T, s Subject) {
	w := NewWorld()
	s.disturb(errors.New("connection refused"))
	stop := Start(t, s.Reporter)
	defer stop()
	for _, reasons := range [][]string{{"First"}, nil, {"Second"}} {
		s.Reporter.Update(w.Run(Check, nil, reasons...))
		time.Sleep(20 * time.Minute)
	}
	if s.Sink != nil && len(s.Reports()) > 0 {
		t.Fatalf("an unreachable sink received %v", s.Reports())
	}
	s.mend()
	time.Sleep(20 * time.Minute)
	reported := s.Reports()
	if !slices.Contains(reported, "Second") {
		t.Errorf("after the outage the sink reports %v, want Second", reported)
	}
	if !s.Edge && slices.Contains(reported, "First") {
		t.Errorf("after the outage the sink reports %v, First is gone", reported)
	}
}

// stateIsNotKept changes everything in a state after Update. A reporter that kept it reports wrong values, and the race
// detector notices.
func stateIsNotKept(t *testing.T, s Subject) {
	w := NewWorld()
	stop := Start(t, s.Reporter)
	defer stop()
	state, updates := w.Run(Check, nil, "Kept")
	before := dump(t, state)
	s.Reporter.Update(state, updates)
	if diff := cmp.Diff(before, dump(t, state)); diff != "" {
		t.Errorf("update modified the state (-before +after):\n%s", diff)
	}
	for _, c := range state {
		c.Err, c.Status = "overwritten", finding.StatusUnknown
		for _, b := range c.Subjects {
			b.Reason, b.Message, b.Severity = "Overwritten", "overwritten", finding.Info
			b.Facts["i"] = "overwritten"
		}
		clear(c.Subjects)
	}
	clear(state)
	for i := range updates {
		updates[i] = finding.Update{Kind: finding.Raised, Finding: finding.Finding{Reason: "Overwritten"}}
	}
	time.Sleep(20 * time.Minute)
	if reported := s.Reports(); !slices.Contains(reported, "Kept") || slices.Contains(reported, "Overwritten") {
		t.Errorf("the sink reports %v, want Kept", reported)
	}
}

// activitiesSurvive reports the end of a release twice while the sink is unreachable, like a restarted agent.
func activitiesSurvive(t *testing.T, s Subject) {
	reporter, ok := s.Reporter.(report.ActivityReporter)
	if !ok {
		return
	}
	w := NewWorld()
	s.disturb(errors.New("connection refused"))
	stop := Start(t, s.Reporter)
	defer stop()
	pod := finding.Subject{Kind: "pod", Name: "default/web", UID: "u1"}
	released := finding.NewActivity(finding.ActionVerified, Check, pod, w.Now())
	released.Pod, released.Message = pod, "leftovers of pod default/web are released: 2 mount"
	began := time.Now()
	for range 2 {
		activities := []finding.Activity{released}
		reporter.Report(activities)
		activities[0].Message = "overwritten"
	}
	if took := time.Since(began); took != 0 {
		t.Errorf("report waited for %s", took)
	}
	time.Sleep(20 * time.Minute)
	if reported := s.Reports(); s.Sink != nil && len(reported) > 0 {
		t.Fatalf("an unreachable sink received %v", reported)
	}
	s.mend()
	time.Sleep(20 * time.Minute)
	if reported := s.Reports(); len(reported) != 1 {
		t.Errorf("after the outage the sink has %v, want the release once", reported)
	}
}

func dump(t *testing.T, state finding.State) string {
	t.Helper()
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func reason(i int) string { return "Reason" + string(rune('A'+i%26)) }
