package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// world is a node with one fault, whose check is run by the test, and one action on it.
type world struct {
	t        *testing.T
	dir      string
	settings Settings
	releases release.Settings
	action   Action
	options  func(*Options)
	tune     func(*Runner)

	faulty   func() bool // whether the check finds the fault
	blind    error       // the check's error
	sees     time.Time   // from then on the check works; zero: never
	does     func(ctx context.Context) error
	refusal  string // of the action's look
	believed finding.Believed
	reported []string // activities
	done     int      // steps that were made
	observed int
	begin    time.Time
}

var subject = finding.Subject{Kind: "daemon", Name: "kubelet"}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), settings: Defaults(), releases: release.Defaults(), begin: time.Now()}
	w.releases.KillSwitch, w.releases.Lock = "/stop", filepath.Join(w.dir, "release.lock")
	w.settings.Actions = map[Name]release.Mode{"cure": release.On}
	w.settings.FleetBudget = None
	w.action = Action{
		Name: "cure", Answers: []Answer{{"kubelet-health", []string{"KubeletNotRunning"}}}, Disrupts: true,
		PerDay: func(s Settings) int { return s.RestartsPerDay },
		Examine: func(context.Context, Tools, finding.Finding) (Job, error) {
			if w.refusal != "" {
				return Job{}, refuse("%s", w.refusal)
			}
			return Job{Does: "cure it", Identity: map[string]string{"pid": "7"}, Do: func(ctx context.Context) (string, error) {
				w.done++
				if w.does != nil {
					return "", w.does(ctx)
				}
				return "", nil
			}}, nil
		},
	}
	w.faulty = func() bool { return w.done == 0 }
	w.fault("a")
	return w
}

// fault makes the check's finding one of a new occurrence, which has been believed for an hour.
func (w *world) fault(id string) {
	raised := w.now()
	raised.SinceBoot -= time.Hour
	w.believed = finding.Believed{Finding: finding.Finding{Check: "kubelet-health", Subject: subject,
		Severity: finding.Fatal, Reason: "KubeletNotRunning", Message: "it does not run"}, ID: id, Raised: raised}
}

// now is the clock of the test's bubble.
func (w *world) now() finding.Timestamp {
	now := hosttest.Now()
	passed := time.Since(w.begin)
	now.SinceBoot += passed
	now.Wall = now.Wall.Add(passed)
	return now
}

func (w *world) observe(context.Context, string) (finding.Observation, error) {
	w.observed++
	if !w.sees.IsZero() && time.Now().After(w.sees) {
		w.blind = nil
	}
	o := finding.Observation{Check: "kubelet-health", At: w.now(), Err: w.blind}
	if w.blind == nil && w.faulty() {
		o.Findings = []finding.Finding{w.believed.Finding}
	}
	return o, nil
}

// runner is a runner after a restart of the agent: it knows only the state on disk.
func (w *world) runner() *Runner {
	w.t.Helper()
	h := hosttest.Host(w.t, func(h *host.Host) { h.Files = host.Files{Root: w.dir}; h.Clock = w.now })
	m, err := mutate.New(h, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = m.Close() })
	o := Options{Settings: w.settings, Releases: w.releases, Host: h, Mutator: m, Log: slog.New(slog.DiscardHandler),
		StateDir: filepath.Join(w.dir, "state"), Observe: w.observe, actions: []Action{w.action},
		Report: func(all []finding.Activity) {
			for _, a := range all {
				w.reported = append(w.reported, string(a.Kind))
			}
		}}
	if w.options != nil {
		w.options(&o)
	}
	r, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.tune != nil {
		w.tune(r)
	}
	return r
}

// round runs one round of a new runner, and returns the reason of the only step.
func (w *world) round(ctx context.Context) (blocked string) {
	w.t.Helper()
	r := w.runner()
	b := w.believed
	r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}}, nil)
	r.round(ctx)
	steps := r.Status().Steps
	if len(steps) != 1 {
		w.t.Fatalf("%d steps", len(steps))
	}
	return steps[0].Blocked
}

// journal lists the records on disk: "intent", "end done", "finish verified".
func (w *world) journal() []string {
	w.t.Helper()
	records, skipped, err := ReadJournal(filepath.Join(w.dir, "state"))
	if err != nil || skipped > 0 {
		w.t.Fatal(err, skipped)
	}
	var lines []string
	for _, r := range records {
		lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", r.Event, r.Result, r.Why), " : "))
	}
	return lines
}

func (w *world) create(name string) {
	if err := os.WriteFile(filepath.Join(w.dir, name), nil, 0o600); err != nil {
		w.t.Error(err)
	}
}

// bubble runs a test of the world with its own clock.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// expect compares how often the step ran and how the journal ends.
func (w *world) expect(done int, last string) {
	w.t.Helper()
	lines := w.journal()
	end := ""
	if len(lines) > 0 {
		end = lines[len(lines)-1]
	}
	if w.done != done || !strings.Contains(end, last) || last == "" && len(lines) > 0 {
		w.t.Errorf("done %d times, want %d; the journal ends with %q, want %q", w.done, done, end, last)
	}
}

var errOutage = errors.New("no answer")

func contains(all []string, want ...string) bool {
	for _, w := range want {
		if !slices.Contains(all, w) {
			return false
		}
	}
	return true
}
