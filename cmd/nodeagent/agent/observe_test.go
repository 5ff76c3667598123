package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/notify"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// taken is a reporter that keeps the last state given to it.
type taken struct {
	times   int
	state   finding.State
	updates []finding.Update
}

func (*taken) Name() string              { return "taken" }
func (*taken) Run(context.Context) error { return nil }
func (r *taken) Update(state finding.State, updates []finding.Update) {
	r.times, r.state, r.updates = r.times+1, state, updates
}

// Reporters get observations that change no state together, ten seconds apart. They get any change at once.
func TestObserve(t *testing.T) {
	reporter := &taken{}
	a := &Agent{
		log: slog.New(slog.DiscardHandler), reporters: []report.Reporter{reporter},
		saver:    newSaver(nil, slog.New(slog.DiscardHandler)),
		Progress: notify.NewProgress(map[string]time.Duration{"a": time.Minute}),
		tracker:  finding.NewTracker(map[string]finding.Policy{"a": {}, "b": {}}, finding.State{}),
	}
	a.deps.Sources = &detect.StateSources{}
	now := finding.Timestamp{Wall: time.Unix(1_800_000_000, 0), Boot: "boot", SinceBoot: time.Hour}
	observe := func(check string, after time.Duration, err error, findings ...finding.Finding) (given bool) {
		now.Wall, now.SinceBoot = now.Wall.Add(after), now.SinceBoot+after
		before := reporter.times
		a.observe(finding.Observation{Check: check, At: now, Findings: findings, Err: err})
		return reporter.times > before
	}
	fault := func(reason, message string) finding.Finding {
		return finding.Finding{Check: "a", Subject: finding.Subject{Kind: "disk", Name: "sda"}, Severity: finding.Warning,
			Reason: reason, Message: message}
	}
	for _, step := range []struct {
		what     string
		check    string
		after    time.Duration
		err      error
		findings []finding.Finding
		given    bool
	}{
		{"the first observation", "a", 0, nil, nil, true},
		{"the first of another check", "b", time.Second, nil, nil, true},
		{"nothing new", "a", time.Second, nil, nil, false},
		{"nothing new of the other", "b", time.Second, nil, nil, false},
		{"a fault", "a", time.Second, nil, []finding.Finding{fault("Slow", "slow")}, true},
		{"the same fault", "a", time.Second, nil, []finding.Finding{fault("Slow", "slow")}, false},
		{"another reason", "a", time.Second, nil, []finding.Finding{fault("Dead", "dead")}, true},
		{"it could not tell", "a", time.Second, context.DeadlineExceeded, nil, true},
		{"it can tell again", "a", time.Second, nil, []finding.Finding{fault("Dead", "dead")}, true},
		{"the fault is gone", "a", time.Second, nil, nil, true},
		{"nothing new", "b", time.Second, nil, nil, false},
		{"not applicable", "b", time.Second, finding.NotApplicable("no disk"), nil, true},
		{"nothing new for ten seconds", "a", repeatEvery, nil, nil, true},
		{"and just after", "a", time.Second, nil, nil, false},
	} {
		if given := observe(step.check, step.after, step.err, step.findings...); given != step.given {
			t.Errorf("%s: given to reporters: %t, want %t", step.what, given, step.given)
		}
		if got := reporter.state["a"]; step.given && (len(got.Subjects) > 0) != (len(a.state()["a"].Subjects) > 0) {
			t.Errorf("%s: not the state of now: %+v", step.what, got)
		}
	}
}
