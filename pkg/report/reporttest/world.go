package reporttest

import (
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// World makes states and updates like the engine, with the real tracker, at the time of the test's clock.
type World struct {
	Boot    string
	Booted  time.Time
	tracker *finding.Tracker
}

// NewWorld returns a world without observations. The machine has been up for an hour.
func NewWorld() *World {
	return &World{Boot: "boot-1", Booted: time.Now().Add(-time.Hour), tracker: finding.NewTracker(nil, nil)}
}

// Now returns the moment.
func (w *World) Now() finding.Timestamp {
	now := time.Now()
	return finding.Timestamp{Wall: now.Round(0), Boot: w.Boot, SinceBoot: now.Sub(w.Booted)}
}

// State returns the believed state.
func (w *World) State() finding.State { return w.tracker.State() }

// Restart makes the tracker continue from state, nil if it was lost.
func (w *World) Restart(state finding.State) { w.tracker = finding.NewTracker(nil, state) }

// Run runs a check once: with an error, or with the reasons of fatal findings.
func (w *World) Run(check string, err error, reasons ...string) (finding.State, []finding.Update) {
	l := finding.Observation{Check: check, At: w.Now(), Err: err}
	for i, reason := range reasons {
		l.Findings = append(l.Findings, Fatal(check, i, reason))
	}
	return w.Observe(l)
}

// Observe passes an observation to the tracker.
func (w *World) Observe(l finding.Observation) (finding.State, []finding.Update) {
	updates := w.tracker.Observe(l)
	return w.tracker.State(), updates
}

// Fatal returns a fatal finding of the i-th subject of a check.
func Fatal(check string, i int, reason string) finding.Finding {
	return finding.Finding{
		Check: check, Subject: finding.Subject{Kind: "thing", Name: fmt.Sprint(i)}, Severity: finding.Fatal,
		Reason: reason, Message: fmt.Sprintf("thing %d is %s", i, reason), Facts: map[string]string{"i": fmt.Sprint(i)},
	}
}
