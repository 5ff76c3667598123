package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/faultpoint"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Options configure a Runner.
type Options struct {
	Settings Settings
	Releases release.Settings // the kill switch and the lock are shared with releases
	Host     *host.Host
	Mutator  *mutate.Mutator
	Log      *slog.Logger
	StateDir string // holds the journal

	// Observe runs a check now and returns its observation. The run begins after the call.
	Observe func(ctx context.Context, check string) (finding.Observation, error)
	// Paused returns why an operator has paused repairs, or ""; see release.Options.
	Paused func(ctx context.Context) (string, error)
	// Slots is the fleet's budget. If nil, disruptive actions run only if FleetBudget is None.
	Slots fleet.Slots
	// Report receives the activities of repairs; it must not block. May be nil.
	Report func([]finding.Activity)

	// Tests only.
	actions    []Action                 // in place of the real ones
	faultPoint func(point string) error // an error stops the repair there, like a crash
	onWrite    func(Record) error       // called before a journal write; an error stands for a disk error
}

// Runner repairs believed faults. Its only persistent state is the journal, and the ages of core dumps.
type Runner struct {
	options Options
	tools   Tools
	wake    chan struct{} // one pending wake is enough: a round looks at everything

	mu       sync.Mutex // guards the fields below
	state    finding.State
	steps    []Step
	held     map[occurrence]finding.Timestamp // since when a gate holds them
	current  string                           // the current repair
	trouble  string                           // why the journal cannot be read or written
	history  []attempt
	reported map[string]finding.ActivityKind // by occurrence and action: planned or refused
}

// New returns a runner.
func New(o Options) (*Runner, error) {
	if o.Host == nil || o.Mutator == nil || o.Log == nil || o.Observe == nil || o.StateDir == "" {
		return nil, errors.New("repair: host, mutator, log, observe and state directory are needed")
	}
	if o.actions == nil {
		o.actions = Actions()
	}
	if o.faultPoint == nil {
		o.faultPoint = func(point string) error {
			faultpoint.Hit(point)
			return nil
		}
	}
	if o.Report == nil {
		o.Report = func([]finding.Activity) {}
	}
	r := &Runner{options: o, wake: make(chan struct{}, 1), reported: map[string]finding.ActivityKind{},
		tools: Tools{Mutator: o.Mutator, Host: o.Host, Settings: o.Settings, Log: o.Log, Releases: o.Releases,
			StateDir: o.StateDir, images: &imageWatch{}, dumps: &dumpWatch{}, folders: realFolders(),
			Stopped: func() string {
				return release.KillSwitch(o.Host.Files, o.Releases.KillSwitch)
			}}}
	r.tools.dumps.load(o.StateDir)
	r.readHistory()
	return r, nil
}

// Name is the name of the component.
func (r *Runner) Name() string { return "repair" }

// Update takes the current beliefs. It does not block.
func (r *Runner) Update(state finding.State, updates []finding.Update) {
	r.mu.Lock()
	first := r.state == nil
	r.state = state
	r.mu.Unlock()
	if first || slices.ContainsFunc(updates, func(u finding.Update) bool { return u.Kind != finding.StatusChanged }) {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// again is the interval of rounds while any repair is possible, for steps that have to wait.
const again = 30 * time.Second

// Run repairs until ctx ends. It sleeps while no believed finding has an action.
func (r *Runner) Run(ctx context.Context) error {
	timer := time.NewTimer(again)
	defer timer.Stop()
	dumps := time.NewTicker(watchDumpsEvery)
	defer dumps.Stop()
	r.watchDumps(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-dumps.C:
			r.watchDumps(ctx)
			continue
		case <-r.wake:
		case <-timer.C:
		}
		if r.round(ctx) {
			timer.Reset(again)
		}
	}
}

// round plans, and does the first possible repair. It reports whether there are any steps.
func (r *Runner) round(ctx context.Context) bool {
	r.readHistory()
	r.mu.Lock()
	state, history := r.state, r.history
	r.mu.Unlock()
	steps := plan(r.options.actions, state, history, r.options.Settings, r.options.Host.Clock())
	acted := false
	for i := range steps {
		step := &steps[i]
		switch {
		case ctx.Err() != nil:
			return false
		case step.Acts() && acted:
			step.Blocked = "one repair at a time: another was just done"
		case step.Acts():
			acted = r.attempt(ctx, step)
		}
		if i < maxExamined && step.Does == "" && !acted {
			r.preview(ctx, step)
		}
	}
	r.mu.Lock()
	r.steps, r.current = steps, ""
	r.noteHeld(steps)
	r.mu.Unlock()
	r.reportPlan(steps)
	return len(steps) > 0
}

// maxExamined limits the findings that actions look at in one round.
const maxExamined = 20

// preview adds to a step that does not run what it would do.
func (r *Runner) preview(ctx context.Context, step *Step) {
	job, err := r.examine(ctx, step)
	switch {
	case err == nil:
		step.Does = job.Does
	case strings.HasPrefix(step.Blocked, needsHelp): // a refusal now does not change that
	case step.Refused:
		step.Blocked = err.Error()
	case step.Mode != release.On:
		step.Blocked += "; cannot tell what it would do: " + err.Error()
	}
}

// examine has the action look at the node.
func (r *Runner) examine(ctx context.Context, step *Step) (Job, error) {
	ctx, cancel := context.WithTimeout(ctx, examineLimit)
	defer cancel()
	job, err := step.action.Examine(ctx, r.tools, step.believed.Finding)
	if _, refused := errors.AsType[mutate.Refusal](err); refused {
		step.Refused = true
	}
	return job, err
}

// readHistory reads the journal. An unreadable journal stops all repairs, since it holds the budgets.
func (r *Runner) readHistory() {
	records, skipped, err := ReadJournal(r.options.StateDir)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.trouble = err.Error()
		return
	}
	if skipped > 0 {
		r.options.Log.Debug("skip malformed lines of the journal of repairs", "lines", skipped)
	}
	r.trouble, r.history = "", attempts(records)
}

// lock takes the lock of repairs on this node. It is held until a repair is verified.
func (r *Runner) lock() (*mutate.ReleaseLock, error) {
	return mutate.Lock(path.Join(path.Dir(r.options.Releases.Lock), "nodeagent-repair.lock"),
		journalFile(r.options.StateDir)+".lock")
}

// Status is the state of repairs, for people.
type Status struct {
	Stopped string   `json:"stopped,omitempty"` // why all repairs are stopped
	Doing   string   `json:"doing,omitempty"`
	Steps   []Step   `json:"steps"`
	Last    []string `json:"last"` // one line for each of the last repairs
}

// Status returns the planned and refused steps and the last repairs.
func (r *Runner) Status() Status {
	stop := release.KillSwitch(r.options.Host.Files, r.options.Releases.KillSwitch)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Doing: r.current, Steps: append([]Step{}, r.steps...), Last: []string{}}
	s.Stopped = stop
	if s.Stopped == "" {
		s.Stopped = r.trouble
	}
	if s.Stopped == "" {
		s.Stopped = stopped(r.history, r.options.Settings, r.options.Host.Clock())
	}
	const most = 5
	for _, a := range r.history[max(0, len(r.history)-most):] {
		s.Last = append(s.Last, a.String())
	}
	return s
}

// History returns one line for each repair of a journal, oldest first.
func History(records []Record) []string {
	var lines []string
	for _, a := range attempts(records) {
		lines = append(lines, a.String())
	}
	return lines
}

// String formats an attempt for people.
func (a attempt) String() string {
	result := string(a.result)
	if result == "" {
		result = "not ended"
	}
	text := fmt.Sprintf("%s  %s %s: %s: %s", a.At.Wall.Local().Format(time.DateTime), a.Action, a.Subject.Name, a.Does,
		result)
	if a.why != "" {
		text += ": " + a.why
	}
	return text
}
