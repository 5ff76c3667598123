package remediate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nodeagent/nodeagent/internal/faultpoint"
	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Options are what a Runner needs.
type Options struct {
	Settings Settings
	Host     *host.Host
	Hand     *hand.Hand
	Log      *slog.Logger
	StateDir string // holds the journal

	// Confirm asks all witnesses again, for the objects of one pod: the answer may contain others too. It is called right
	// before the first step of a pod, and again after each group of steps. The empty UID stands for objects that tell no
	// pod. It must come from a fresh and consistent LIST of the apiserver.
	Confirm func(ctx context.Context, uid string) (inspect.Report, error)
	// Paused says why an operator wants nothing to be released (an annotation of the Node), or "". Nil: cannot be paused.
	// An error means that nobody can say, and then nothing is released.
	Paused func(ctx context.Context) (string, error)

	hit func(point string) error // tests only: an error stops the release there, as a crash would
}

// Runner releases leftovers. It has no state of its own but the journal: a Runner may be made anew at any time.
type Runner struct {
	options Options
	tools   Tools
}

// New returns a runner.
func New(o Options) (*Runner, error) {
	if o.Host == nil || o.Hand == nil || o.Log == nil || o.Confirm == nil || o.StateDir == "" {
		return nil, errors.New("remediate: host, hand, log, confirm and state directory are needed")
	}
	if err := o.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("remediate: %w", err)
	}
	if o.hit == nil {
		o.hit = func(point string) error {
			faultpoint.Hit(point)
			return nil
		}
	}
	return &Runner{
		options: o,
		tools: Tools{Hand: o.Hand, Host: o.Host, Settings: o.Settings, Log: o.Log, Hit: func(point string) error {
			if err := o.hit(point); err != nil {
				return cut{err}
			}
			return nil
		}},
	}, nil
}

// cut is the error of a fault point: it ends everything, as a crash would, wherever it comes from.
type cut struct{ error }

func (c cut) Unwrap() error { return c.error }

// maxPreviews bounds how many objects are looked into for a plan: nodes with thousands of left pod directories were seen.
const maxPreviews = 100

// Plan lists what Release would do about the report and why not, with what can be seen by reading alone (user data in a
// pod's directory, a CSI driver that is alive). It changes nothing and writes nothing.
func (r *Runner) Plan(ctx context.Context, report inspect.Report) ([]Step, error) {
	records, _, err := ReadJournal(r.options.StateDir)
	if err != nil {
		return nil, err
	}
	steps := Plan(report, r.policy(ctx, records), r.options.Host.Clock())
	looks := 0
	for i := range steps {
		action, ok := actionFor(steps[i].Kind)
		if !ok || action.Preview == nil || steps[i].refused || looks == maxPreviews {
			continue
		}
		looks++
		if why := action.Preview(ctx, r.tools, steps[i].Object); why != "" {
			steps[i].NotNow, steps[i].refused = "refused: "+why, true
		}
	}
	return steps, nil
}

func (r *Runner) policy(ctx context.Context, records []Record) Policy {
	return Policy{Settings: r.options.Settings, Stop: r.stop(ctx), Attempts: attempts(records)}
}

// Release does what the plan of a report says, pod by pod. It may be called again with the same report at any time: what is
// gone is gone. An error means that nothing more may be done now: the journal cannot be written, or a fault point was hit.
// Without a journal nothing is done.
func (r *Runner) Release(ctx context.Context, report inspect.Report) (Outcome, error) {
	unlock, err := hand.Lock(r.options.Settings.Lock)
	if errors.Is(err, hand.ErrBusy) {
		return Outcome{Stopped: err.Error()}, nil
	}
	if err != nil {
		return Outcome{}, err
	}
	outcome, err := r.release(ctx, report)
	return outcome, errors.Join(err, unlock())
}

// release runs under the lock.
func (r *Runner) release(ctx context.Context, report inspect.Report) (Outcome, error) {
	records, skipped, err := ReadJournal(r.options.StateDir)
	if err != nil {
		return Outcome{}, err
	}
	if skipped > 0 {
		r.options.Log.Warn("the journal has lines that cannot be read", "lines", skipped)
	}
	outcome := Outcome{CutOff: unfinished(records)}
	policy := r.policy(ctx, records)
	outcome.Stopped = policy.Stop
	pods := byGroup(Plan(report, policy, r.options.Host.Clock()))
	var journal *journal
	for _, steps := range pods {
		if !acts(steps) {
			outcome.Pods = append(outcome.Pods, notActed(steps))
			continue
		}
		if journal == nil { // where nothing is done nothing is written
			if journal, err = r.openJournal(outcome.CutOff); err != nil {
				return outcome, err
			}
			defer journal.close()
		}
		pod, err := r.releasePod(ctx, journal, steps)
		outcome.Pods = append(outcome.Pods, pod)
		if err != nil {
			return outcome, err
		}
	}
	return outcome, nil
}

// openJournal opens the journal and closes what a crash cut off, so that it is told once. Nothing is done about it: what
// is left over is found again by looking.
func (r *Runner) openJournal(cutOff []Record) (*journal, error) {
	j, err := openJournal(r.options.StateDir)
	if err != nil {
		return nil, err
	}
	for _, record := range cutOff {
		r.options.Log.Warn("a release was cut off", "pod", record.Pod.UID, "kind", record.Kind, "id", record.ID, "step", record.Does)
		event := End
		if record.Event == Begin {
			event = Finish
		}
		record.At, record.Event, record.Result, record.Why = r.options.Host.Clock(), event, Interrupted, "a crash cut it off"
		if err := j.write(record); err != nil {
			return nil, errors.Join(err, j.close())
		}
	}
	return j, nil
}

// byGroup parts a plan by pod, in order.
func byGroup(steps []Step) [][]Step {
	var pods [][]Step
	for i, step := range steps {
		if i == 0 || steps[i-1].Group != step.Group {
			pods = append(pods, nil)
		}
		pods[len(pods)-1] = append(pods[len(pods)-1], step)
	}
	return pods
}

// notActed is the outcome of a pod of which nothing may be released.
func notActed(steps []Step) PodOutcome {
	pod := PodOutcome{Group: steps[0].Group, Pod: steps[0].Pod, Result: NotActed, Why: steps[0].NotNow}
	for _, step := range steps {
		pod.Steps = append(pod.Steps, StepOutcome{Step: step, Result: resultOf(step)})
	}
	return pod
}

func resultOf(step Step) Result {
	switch {
	case dead(step.Object):
		return Vanished
	case step.refused:
		return Refused
	}
	return NotActed
}
