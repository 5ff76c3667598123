// Package release releases the leftovers of deleted pods. It acts only on objects that an inspection judged to be
// leftovers, one pod at a time, in the order of the actions. It removes the smallest blocker first and then gives the
// owner (kubelet, the runtime) time to finish its own work.
//
// Each step is: a look at the object, intent in the journal, guards, another check of the object's identity (by package
// mutate, right before the system call), the change, verification, end in the journal. A crash between any two of them
// is harmless: the next release starts from the state of the node, never from an old plan.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/faultpoint"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/csi"
)

// Options configure a Runner.
type Options struct {
	Settings Settings
	Host     *host.Host
	Mutator  *mutate.Mutator
	Log      *slog.Logger
	StateDir string // holds the journal

	// Confirm inspects the objects of one pod again, with all witnesses; the report may contain other pods too. It is
	// called right before the first step of a pod, and again after each group of steps. The empty UID stands for
	// objects without a known pod. It must use a fresh and consistent LIST of the apiserver.
	Confirm func(ctx context.Context, uid string) (object.Report, error)
	// StillGone checks right before a step whether the pod has come back: an error if it has, or if this is unknown. It
	// asks kubelet and the manifests of static pods, and takes well under a second.
	StillGone func(ctx context.Context, pod object.Pod) error
	// Paused returns why an operator has paused releases (an annotation of the Node), or "". Nil: there is no pause. An
	// error means "not known", and no release runs.
	Paused func(ctx context.Context) (string, error)

	// Tests only.
	faultPoint                   func(point string) error // an error stops the release there, like a crash
	table                        actions.Table            // in place of the real actions
	onWrite                      func(Record) error       // called before a journal write; an error stands for a disk error
	serverTimeout, socketTimeout time.Duration            // of the actions.Tools and csi.Evidence
}

// Runner releases leftovers. Its only state is the journal: a Runner may be re-created at any time.
type Runner struct {
	options Options
	tools   actions.Tools

	manual Manual
	swept  *quarantineClock
	halt   *halted
}

// New returns a runner.
func New(o Options) (*Runner, error) {
	if o.Host == nil || o.Mutator == nil || o.Log == nil || o.Confirm == nil || o.StillGone == nil || o.StateDir == "" {
		return nil, errors.New("remediate: host, mutator, log, confirm, stillGone and state directory are needed")
	}
	if err := o.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("remediate: %w", err)
	}
	if o.table == nil {
		o.table = actions.All()
	}
	return &Runner{
		options: o, swept: &quarantineClock{}, halt: &halted{},
		tools: actions.Tools{
			Mutator: o.Mutator, Host: o.Host, Settings: o.Settings.forActions(), Log: o.Log, FaultPoint: o.hit,
			CSI:           &csi.Evidence{Dir: o.StateDir, Host: o.Host, Mutator: o.Mutator, SocketTimeout: o.socketTimeout},
			ServerTimeout: o.serverTimeout,
		},
	}, nil
}

// injectedCrash is the error of a fault point: it ends the release like a crash.
type injectedCrash struct{ error }

func (c injectedCrash) Unwrap() error { return c.error }

func (o *Options) hit(point string) error {
	if o.faultPoint == nil {
		faultpoint.Hit(point)
	} else if err := o.faultPoint(point); err != nil {
		return injectedCrash{err}
	}
	return nil
}

// maxPreviews limits how many objects are read for a plan: some nodes have thousands of orphaned pod directories.
const maxPreviews = 100

// Plan lists what Release would do for the report and why not, including facts found by reading (user data in a pod's
// directory, a CSI driver that is alive), with every guard's answer. It changes and writes no data.
func (r *Runner) Plan(ctx context.Context, report object.Report) ([]Step, error) {
	records, _, err := r.readJournal()
	if err != nil {
		return nil, err
	}
	report = kinds.Releasable(report)
	steps := Plan(report, r.policy(ctx, report, records, true), r.options.Host.Clock())
	previews := 0
	for i := range steps {
		action, ok := r.options.table.On(steps[i].Kind)
		if !ok || action.Look == nil || steps[i].refused {
			continue
		}
		seen := answer("look", "", fmt.Sprintf("right before the step: a plan looks at %d objects", maxPreviews))
		if previews++; previews <= maxPreviews {
			tools := r.tools
			tools.Unmounted = unmountedFirst(steps, steps[i])
			why := action.Look(ctx, tools, steps[i].Object)
			seen = answer("look", refused(why), "the state of the object permits it")
		}
		s := &steps[i]
		s.Guards.Object = slices.Insert(s.Guards.Object, 1, seen) // before the mode
		s.Blocked, s.refused = s.Guards.why(), !seen.Open
	}
	return steps, nil
}

// unmountedFirst returns the mount points that the plan releases before a step, in the same pod.
func unmountedFirst(steps []Step, before Step) map[string]bool {
	points, stays := make(map[string]bool), make(map[string]bool) // several mounts may lie on one point
	for i := range steps {
		if s := &steps[i]; s.Group == before.Group && s.Kind == object.Mount {
			point := s.Object.Identity.Mount.Point
			stays[point] = stays[point] || s.refused || s.Mode == Off
			points[point] = !stays[point]
		}
	}
	return points
}

// policy asks whether releases are paused, a request to the apiserver, only if a report has an object to release or to
// wait for, or the quarantine may be swept. If the kill switch exists, it asks only if every answer is wanted.
func (r *Runner) policy(ctx context.Context, report object.Report, records []Record, every bool) Policy {
	p := Policy{Settings: r.options.Settings, Attempts: attempts(records), table: r.options.table}
	kill := killSwitchGuard(r.options.Host.Files, p.KillSwitch)
	p.Node = []Guard{kill}
	asks := len(report.Suspicious().Objects) > 0 || p.ModeOf(object.PodDirectory) == On
	if asks && (every || kill.Open) {
		p.Node = append(p.Node, r.paused(ctx))
	}
	p.Node = append(p.Node, p.failureGuard("failures", r.tooManyFailed(), "pods in a row"))
	return p
}

// Release executes the plan of a report, pod by pod. It may be called again with the same report at any time. An error
// means that no more steps may run now: the journal cannot be written, or a fault point was hit. Without a journal no
// step runs; if there is no step to run, the lock is not taken.
func (r *Runner) Release(ctx context.Context, report object.Report) (Outcome, error) {
	report = kinds.Releasable(report)
	plan, err := r.survey(ctx, report)
	if err != nil {
		return Outcome{}, err
	}
	acting, sweep := slices.ContainsFunc(plan.pods, anyActs), r.sweepDue(ctx, plan)
	if !acting && !sweep {
		return r.release(ctx, plan, false, nil)
	}
	lock, err := r.lock(ctx)
	switch busy := errors.Is(err, mutate.ErrBusy); {
	case busy && acting:
		return Outcome{Stopped: err.Error(), Busy: true}, nil
	case busy:
		return r.release(ctx, plan, false, nil)
	}
	if err != nil {
		return Outcome{}, err
	}
	var outcome Outcome
	if plan, err = r.survey(ctx, report); err == nil { // another release may have written to the journal meanwhile
		outcome, err = r.release(ctx, plan, sweep && plan.stop == "", lock.Held)
	}
	return outcome, errors.Join(err, lock.Unlock())
}

// sweepDue reports whether a sweep of the quarantine is due and the quarantine has entries.
func (r *Runner) sweepDue(ctx context.Context, plan survey) bool {
	byHand := r.manual.Agreed != nil // the person agreed to steps only
	if byHand || plan.stop != "" || r.options.Settings.ModeOf(object.PodDirectory) != On ||
		!r.swept.due(r.options.Host.Clock()) {
		return false
	}
	kept, err := r.options.Mutator.Quarantined(ctx)
	return err != nil || len(kept) > 0 // an error is reported by the sweep
}

// lock takes the release lock. Besides the lock file it locks the directory of the journal, which must have one writer:
// the two are not removed together.
func (r *Runner) lock(ctx context.Context) (lock *mutate.ReleaseLock, err error) {
	if err := os.MkdirAll(r.options.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	notified := r.manual.OnWait == nil
	interrupted := actions.Poll(ctx, r.manual.LockWait, func() (bool, error) {
		lock, err = r.options.Settings.LockNode(r.options.StateDir)
		busy := errors.Is(err, mutate.ErrBusy)
		if busy && !notified {
			r.manual.OnWait(err.Error())
			notified = true
		}
		return !busy, nil
	})
	return lock, cmp.Or(err, interrupted)
}

// survey is the plan of a report, pod by pod, with what the journal shows.
type survey struct {
	pods   [][]Step
	stop   string   // why no step may run
	unsure bool     // because a guard could not be asked
	cutOff []Record // steps that an earlier crash interrupted
}

func (r *Runner) survey(ctx context.Context, report object.Report) (survey, error) {
	records, skipped, err := r.readJournal()
	if err != nil {
		return survey{}, err
	}
	if skipped > 0 {
		r.options.Log.Warn("skip malformed lines of the journal", "lines", skipped)
	}
	policy := r.policy(ctx, report, records, false)
	stop := firstClosed(policy.Node)
	if stop == "" && r.options.Settings.ModeOf(object.PodDirectory) != Off {
		r.tools.CSI.Observe(ctx, report, r.options.Log)
	}
	steps := Plan(report, policy, r.options.Host.Clock())
	r.manual.limit(steps)
	return survey{
		pods: chunks(steps, func(s Step) string { return s.Group }), stop: stop, cutOff: unfinished(records),
		unsure: slices.ContainsFunc(policy.Node, func(g Guard) bool { return g.Unknown && g.Why == stop }),
	}, nil
}

// release runs with the lock held if any step is to run; otherwise held is nil.
func (r *Runner) release(ctx context.Context, plan survey, sweep bool, held func() error) (Outcome, error) {
	outcome := Outcome{Stopped: plan.stop, CutOff: plan.cutOff, Unknown: plan.unsure}
	opened := &lazyJournal{Runner: r, cutOff: outcome.CutOff}
	defer opened.close()
	for _, steps := range plan.pods {
		if !anyActs(steps) {
			outcome.Pods = append(outcome.Pods, notActed(steps))
			continue
		}
		journal, err := opened.journal()
		if err != nil {
			return outcome, err
		}
		if outcome.Stopped != "" { // by an earlier pod
			for i := range steps {
				steps[i].Blocked = cmp.Or(steps[i].Blocked, outcome.Stopped)
			}
			outcome.Pods = append(outcome.Pods, notActed(steps))
			continue
		}
		pod, err := r.releasePod(ctx, journal, held, steps)
		outcome.Pods = append(outcome.Pods, pod)
		if err == nil {
			_, _, err = r.readJournal()
		}
		if err != nil {
			return outcome, err
		}
		outcome.Stopped = r.tooManyFailed()
	}
	if sweep && ctx.Err() == nil && outcome.Stopped == "" {
		return outcome, r.sweep(ctx, opened)
	}
	return outcome, nil
}

// lazyJournal is the journal of a release or a sweep, which is not opened if no step runs.
type lazyJournal struct {
	*Runner
	cutOff []Record
	opened *journal
}

func (l *lazyJournal) journal() (_ *journal, err error) {
	if l.opened == nil {
		l.opened, err = l.openJournal(l.cutOff)
	}
	return l.opened, err
}

// write journals a record now. Without a journal no entry of the quarantine is removed.
func (l *lazyJournal) write(record Record) error {
	j, err := l.journal()
	if err != nil {
		return err
	}
	record.At = l.options.Host.Clock()
	return j.write(record)
}

func (l *lazyJournal) close() {
	if l.opened != nil {
		_ = l.opened.Close() // each record is on disk
	}
}

// openJournal opens the journal and closes the records that a crash interrupted, so that they are reported once. That
// is enough: the next inspection finds the leftovers again.
func (r *Runner) openJournal(cutOff []Record) (*journal, error) {
	j, err := openJournal(r.options.StateDir)
	if err != nil {
		return nil, err
	}
	j.onWrite = r.options.onWrite
	for _, record := range cutOff {
		r.options.Log.Warn("record an interrupted release", "pod", record.Pod.UID, "kind", record.Kind, "id", record.ID,
			"step", record.Does)
		event := End
		if record.Event == Begin {
			event = Finish
		}
		record.At, record.Event, record.Result, record.Why = r.options.Host.Clock(), event, Interrupted,
			"interrupted by a crash"
		if err := j.write(record); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	j.onRecord = r.manual.OnRecord // not called with records of an earlier release
	return j, nil
}

// chunks splits steps where a key changes.
func chunks(steps []Step, key func(Step) string) [][]Step {
	var all [][]Step
	for i, step := range steps {
		if i == 0 || key(steps[i-1]) != key(step) {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], step)
	}
	return all
}

// notActed is the outcome of a pod that must not be released.
func notActed(steps []Step) PodOutcome {
	pod := PodOutcome{Group: steps[0].Group, Pod: steps[0].Pod, Result: NotActed, Why: steps[0].Blocked}
	for _, step := range steps {
		pod.Steps = append(pod.Steps, StepOutcome{Step: step, Result: resultOf(step)})
	}
	return pod
}

func resultOf(step Step) Result {
	switch {
	case step.Object.IsDead():
		return Vanished
	case step.refused:
		return Refused
	}
	return NotActed
}
