package detect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Engine runs each check at its interval and whenever a source wakes it: one run of a check at a time, each with a
// deadline. It abandons a run that does not return, counts it and reports it as an error. It does not start the check
// again before that run has returned.
type Engine struct {
	host     *host.Host
	log      *slog.Logger
	runners  []*runner
	sources  []Source
	report   func(finding.Observation)
	observer Observer
	begun    time.Time     // of the grid
	turn     chan struct{} // holds one token: see awaitTurn
}

// Source is a part of the host that notifies of changes. Run blocks until ctx ends, or returns an error when the source
// is lost; the engine starts it again after a while.
type Source struct {
	Name WakeSource
	Run  func(ctx context.Context, wake func(Change)) error
}

// Change is a report of a source. The zero value means that anything may have changed.
type Change struct {
	Text   string   // for Wake.Match
	Checks []string // IDs of checks, for Wake.Named
}

// Observer receives the results of runs, for metrics. Its functions may be nil.
type Observer struct {
	Ran       func(check string, took time.Duration, err error)
	Abandoned func(check string)
}

const (
	// abandonAfter is how long after its deadline a run may still return.
	abandonAfter = 500 * time.Millisecond
	// wakeGap is the shortest time between two runs of a check caused by wakes: a flood of kernel messages causes five
	// runs a second, not thousands.
	wakeGap = 200 * time.Millisecond
	// settleAfter is when a woken check runs again: the kernel often logs a fault before the state shows it.
	settleAfter = time.Second
	// sourceProof is how long a source must have run to count as working.
	sourceProof = 2 * time.Second
	// sourceRetry is the time between the loss of a source and its restart.
	sourceRetry = 10 * time.Second
)

// NewEngine returns an engine that passes every observation to report, one at a time.
func NewEngine(h *host.Host, log *slog.Logger, checks []Check, sources []Source, observer Observer,
	report func(finding.Observation)) *Engine {
	var mu sync.Mutex // held while report is called: runs of different checks end at the same time
	e := &Engine{host: h, log: log, sources: sources, observer: observer, begun: time.Now(),
		turn: make(chan struct{}, 1)}
	e.report = func(o finding.Observation) {
		mu.Lock()
		defer mu.Unlock()
		report(o)
	}
	for _, c := range checks {
		// One pending wake is enough: the next run covers all changes before it.
		e.runners = append(e.runners, &runner{check: c, engine: e, wake: make(chan struct{}, 1),
			asked: make(chan chan<- finding.Observation)})
	}
	return e
}

// Run runs the checks until ctx ends. It leaves abandoned runs to the end of the process.
func (e *Engine) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, r := range e.runners {
		wg.Go(func() { r.loop(ctx) })
	}
	for _, s := range e.sources {
		wg.Go(func() { e.feed(ctx, s) })
	}
	wg.Wait()
	return nil
}

// Wake runs the checks that subscribed to a change.
func (e *Engine) Wake(source WakeSource, change Change) {
	for _, r := range e.runners {
		if r.check.WantsWake(source, change) {
			r.wakeUp()
		}
	}
}

// RunNow runs a check and returns its observation, which has been reported. The run starts after the call. An error
// means that there is no observation: Run has ended, or will not run the check in time.
func (e *Engine) RunNow(ctx context.Context, check string) (finding.Observation, error) {
	at := slices.IndexFunc(e.runners, func(r *runner) bool { return r.check.ID == check })
	if at < 0 {
		return finding.Observation{}, fmt.Errorf("there is no check %s", check)
	}
	answer := make(chan finding.Observation, 1) // so that the runner never waits for a caller who has given up
	select {
	case e.runners[at].asked <- answer:
	case <-ctx.Done():
		return finding.Observation{}, fmt.Errorf("run of %s: %w", check, context.Cause(ctx))
	}
	select {
	case observation := <-answer:
		return observation, nil
	case <-ctx.Done():
		return finding.Observation{}, fmt.Errorf("run of %s: %w", check, context.Cause(ctx))
	}
}

// WantsWake reports whether the check must run after a change.
func (c Check) WantsWake(source WakeSource, change Change) bool {
	anything := change.Text == "" && len(change.Checks) == 0
	return slices.ContainsFunc(c.Wakes, func(w Wake) bool {
		switch {
		case w.Source != source:
			return false
		case w.Named && !anything:
			return slices.Contains(change.Checks, c.ID)
		}
		return anything || strings.Contains(change.Text, w.Match)
	})
}

// feed runs a source and restarts it when it is lost. The loss is a finding of a check named after the source. The
// checks still run at their intervals.
func (e *Engine) feed(ctx context.Context, s Source) {
	id := "source-" + string(s.Name)
	for ctx.Err() == nil {
		// A source that cannot be opened returns at once: it counts as working only after it has run for a moment.
		reported := make(chan struct{})
		working := time.AfterFunc(sourceProof, func() {
			defer close(reported)
			e.report(finding.Observation{Check: id, At: e.host.Clock()})
		})
		err := s.Run(ctx, func(change Change) { e.Wake(s.Name, change) })
		if !working.Stop() {
			<-reported // before the loss is reported
		}
		if ctx.Err() != nil {
			return
		}
		e.log.Error("source lost", "source", s.Name, "err", err)
		e.report(finding.Observation{Check: id, At: e.host.Clock(), Findings: []finding.Finding{{
			Check: id, Subject: finding.Subject{Kind: "source", Name: string(s.Name)}, Severity: finding.Warning,
			Reason: "SourceLost",
			Message: fmt.Sprintf("the agent receives no events of %s: %v; faults are found at the checks' intervals "+
				"only", s.Name, err),
		}}})
		select {
		case <-ctx.Done():
		case <-time.After(sourceRetry):
		}
	}
}

// runner is one check with its schedule.
type runner struct {
	check   Check
	engine  *Engine
	wake    chan struct{}
	asked   chan chan<- finding.Observation // by RunNow
	pending chan result                     // of a run that has not returned; nil if none runs
}

type result struct {
	findings []finding.Finding
	err      error
}

func (r *runner) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake is pending already
	}
}

func (r *runner) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	settled := true
	for runs := 0; ; runs++ {
		var answer chan<- finding.Observation
		endTurn := func() {}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			settled = false
		case answer = <-r.asked:
		case <-timer.C:
			if runs > 0 {
				var woken bool
				endTurn, woken = r.awaitTurn(ctx)
				settled = !woken
			}
		}
		before := r.pending != nil // an earlier run, which may have seen an outdated state
		l := r.observe(ctx)
		if answer != nil && before && r.pending == nil && ctx.Err() == nil {
			r.engine.report(l)
			l = r.observe(ctx)
		}
		endTurn()
		if ctx.Err() != nil {
			return // the run was cut short: its result is invalid
		}
		r.engine.report(l)
		if answer != nil {
			answer <- l
		}
		next := spread(r.check.Every)
		if runs == 0 {
			next = phase(r.check.Every)
		}
		if !settled {
			settled, next = true, min(settleAfter, next)
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(wakeGap, r.check.WakeGap)):
			}
		}
		timer.Reset(r.engine.onGrid(next))
	}
}

// turnFor is how long a run keeps the turn: a longer run is waiting, and the next one starts beside it.
const turnFor = 50 * time.Millisecond

// awaitTurn waits until a timed run may start. Timed runs that are due at the same moment start one after another. If
// they ran in parallel, then in each of their system calls Go's monitor, which then runs every 20 µs, would move the
// processor to another thread, and that cost more than most checks. A wake ends the waiting.
func (r *runner) awaitTurn(ctx context.Context) (end func(), woken bool) {
	select {
	case r.engine.turn <- struct{}{}:
	case <-r.wake:
		return func() {}, true
	case <-ctx.Done():
		return func() {}, false
	}
	pass := sync.OnceFunc(func() { <-r.engine.turn })
	limit := time.AfterFunc(turnFor, pass)
	return func() { limit.Stop(); pass() }, false
}

// observe runs the check once, or reports that the previous run has not returned.
func (r *runner) observe(ctx context.Context) finding.Observation {
	began := r.engine.host.Clock()
	l := finding.Observation{Check: r.check.ID, At: began}
	if r.pending == nil {
		r.pending = make(chan result, 1) // so that an abandoned run can end without a reader
		go run(ctx, r.engine.host, r.check, r.pending)
	}
	limit := time.NewTimer(r.check.deadline() + abandonAfter)
	defer limit.Stop()
	select {
	case res := <-r.pending:
		r.pending = nil
		l.Findings, l.Err = res.findings, res.err
	case <-limit.C:
		l.Err = fmt.Errorf("no answer within %s, the run has not returned", r.check.deadline())
		if r.engine.observer.Abandoned != nil {
			r.engine.observer.Abandoned(r.check.ID)
		}
	case <-ctx.Done():
		l.Err = context.Cause(ctx)
	}
	l.At = r.engine.host.Clock()
	if r.engine.observer.Ran != nil {
		r.engine.observer.Ran(r.check.ID, l.At.Since(began), l.Err)
	}
	return l
}

func (c Check) deadline() time.Duration {
	return cmp.Or(c.Deadline, DefaultDeadline)
}

// run runs a check once. A panic is an error of this check; the others continue.
func run(ctx context.Context, h *host.Host, c Check, done chan<- result) {
	ctx, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	defer func() {
		if trouble := recover(); trouble != nil {
			done <- result{err: fmt.Errorf("internal error: %v\n%s", trouble, debug.Stack())}
		}
	}()
	findings, err := c.Observe(ctx, h)
	done <- result{findings, err}
}

// Observe runs the check once and completes its findings: with the ID, the severity that a user has set, and the
// suggested action.
func (c Check) Observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if len(c.Uses) > 0 {
		if err := h.Doubts.Of(c.Uses...); err != nil {
			return nil, err
		}
	}
	findings, err := c.Run(ctx, h)
	_, inapplicable := errors.AsType[*finding.NotApplicableError](err)
	if len(c.UsesPartly) > 0 && !inapplicable && !errors.Is(err, hosterr.ErrDoubt) {
		err = errors.Join(err, h.Doubts.Of(c.UsesPartly...))
	}
	for i := range findings {
		c.advise(h, &findings[i])
		findings[i].Check = c.ID
		findings[i].Severity = cmp.Or(c.Severity, findings[i].Severity)
		if c.Suggest != nil {
			findings[i].SuggestedAction, findings[i].Part = c.Suggest(h, findings[i])
		}
	}
	return findings, err
}

// advise puts the unit names of the node's distribution into the message of a finding, and into the check's advice.
func (c Check) advise(h *host.Host, f *finding.Finding) {
	f.Message = h.Node.Advise(f.Message)
	advice, own := f.Facts["advice"]
	if !own {
		advice = c.Advice
	}
	if advised := h.Node.Advise(advice); advised != advice {
		if f.Facts == nil {
			f.Facts = map[string]string{}
		}
		f.Facts["advice"] = advised
	}
}

// RunOnce runs each check once, in parallel, and returns the observations in the order of the checks. It passes each to
// report as soon as it exists; report may be nil.
func RunOnce(ctx context.Context, h *host.Host, checks []Check,
	report func(finding.Observation)) []finding.Observation {
	all := make([]finding.Observation, len(checks))
	e := NewEngine(h, slog.New(slog.DiscardHandler), checks, nil, Observer{}, func(l finding.Observation) {
		if report != nil {
			report(l)
		}
	})
	for _, last := range []bool{false, true} {
		var wg sync.WaitGroup
		for i, r := range e.runners {
			if r.check.RunAfter == last {
				wg.Go(func() {
					all[i] = r.observe(ctx)
					e.report(all[i])
				})
			}
		}
		wg.Wait()
	}
	return all
}
