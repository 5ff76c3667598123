package detect

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Engine looks with every check at its interval and whenever a source wakes it: one look of a check at a time, each
// with a deadline. A look that does not come back is abandoned, counted and reported as "could not tell"; the check
// is not started again before it has come back.
type Engine struct {
	host     *host.Host
	log      *slog.Logger
	runners  []*runner
	sources  []Source
	tell     func(finding.Observation)
	observer Observer
}

// Source is something of the host that tells of changes by itself. Run blocks until ctx ends, or returns an error
// when the source is lost; it is then started again after a while.
type Source struct {
	Name WakeSource
	Run  func(ctx context.Context, wake func(Change)) error
}

// Change is what a source tells. The zero value stands for anything: the source cannot or could not say what happened.
type Change struct {
	Text   string   // what the source says, for Wake.Match
	Checks []string // IDs of the checks that are meant, for Wake.Named
}

// Observer is told how looks went, for metrics. Its functions may be nil.
type Observer struct {
	Looked    func(check string, took time.Duration, err error)
	Abandoned func(check string)
}

const (
	// abandonAfter is how long after its deadline a look may still come back by itself.
	abandonAfter = 500 * time.Millisecond
	// wakeGap is the least time between two looks of a check that are caused by wakes: a flood of kernel messages
	// costs five looks a second, not thousands.
	wakeGap = 200 * time.Millisecond
	// settleAfter is when a check looks once more after it was woken: the kernel often tells of a fault before the
	// state shows it.
	settleAfter = time.Second
	// sourceProof is how long a source must have run to be believed to hear something.
	sourceProof = 2 * time.Second
	// sourceRetry is how long after its loss a source is started again.
	sourceRetry = 10 * time.Second
)

// NewEngine returns an engine that hands every look to tell, one at a time.
func NewEngine(h *host.Host, log *slog.Logger, checks []Check, sources []Source, observer Observer,
	tell func(finding.Observation)) *Engine {
	var mu sync.Mutex // looks of different checks end at the same time; tell is called by one of them at a time
	e := &Engine{host: h, log: log, sources: sources, observer: observer, tell: func(l finding.Observation) {
		mu.Lock()
		defer mu.Unlock()
		tell(l)
	}}
	for _, c := range checks {
		// One pending wake is enough: the look that follows sees everything that happened before it.
		e.runners = append(e.runners, &runner{check: c, engine: e, wake: make(chan struct{}, 1)})
	}
	return e
}

// Run looks until ctx ends. Looks that are abandoned at that time are left to the end of the process.
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

// Wake makes every check look soon that wants to be woken by a change.
func (e *Engine) Wake(source WakeSource, change Change) {
	for _, r := range e.runners {
		if r.check.WantsWake(source, change) {
			r.wakeUp()
		}
	}
}

// WantsWake reports whether the check is to look at a change.
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

// feed runs a source and starts it again when it is lost. Being deaf is reported through a check of its own, because
// the checks themselves still look at their intervals.
func (e *Engine) feed(ctx context.Context, s Source) {
	id := "source-" + string(s.Name)
	for ctx.Err() == nil {
		// A source that cannot be opened returns at once: nothing is proven before it has run for a moment.
		told := make(chan struct{})
		heard := time.AfterFunc(sourceProof, func() {
			defer close(told)
			e.tell(finding.Observation{Check: id, At: e.host.Clock()})
		})
		err := s.Run(ctx, func(change Change) { e.Wake(s.Name, change) })
		if !heard.Stop() {
			<-told // else that it is heard might be told after that it is lost
		}
		if ctx.Err() != nil {
			return
		}
		e.log.Error("source lost", "source", s.Name, "err", err)
		e.tell(finding.Observation{Check: id, At: e.host.Clock(), Findings: []finding.Finding{{
			Check: id, Subject: finding.Subject{Kind: "source", Name: string(s.Name)}, Severity: finding.Warning,
			Reason: "SourceLost",
			Message: fmt.Sprintf("the agent does not hear %s: %v; faults are found at the checks' intervals only",
				s.Name, err),
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
	pending chan result // of a look that has not come back; nil when none runs
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
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			settled = false
		case <-timer.C:
		}
		l := r.look(ctx)
		if ctx.Err() != nil {
			return // the look was cut short: that says nothing of the node
		}
		r.engine.tell(l)
		next := spread(r.check.Every)
		if !settled {
			settled, next = true, min(settleAfter, next)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wakeGap):
			}
		}
		timer.Reset(next)
	}
}

// spread keeps checks with the same interval from falling into step.
func spread(every time.Duration) time.Duration {
	if every <= 0 {
		return time.Minute
	}
	return every - every/20 + rand.N(every/10+1)
}

// look takes one look, or tells that the one before is still running.
func (r *runner) look(ctx context.Context) finding.Observation {
	began := r.engine.host.Clock()
	l := finding.Observation{Check: r.check.ID, At: began}
	if r.pending == nil {
		r.pending = make(chan result, 1) // so that an abandoned look can end without a reader
		go run(ctx, r.engine.host, r.check, r.pending)
	}
	limit := time.NewTimer(r.check.deadline() + abandonAfter)
	defer limit.Stop()
	select {
	case res := <-r.pending:
		r.pending = nil
		l.Findings, l.Err = res.findings, res.err
	case <-limit.C:
		l.Err = fmt.Errorf("no answer within %s, the look is still running", r.check.deadline())
		if r.engine.observer.Abandoned != nil {
			r.engine.observer.Abandoned(r.check.ID)
		}
	case <-ctx.Done():
		l.Err = context.Cause(ctx)
	}
	l.At = r.engine.host.Clock()
	if r.engine.observer.Looked != nil {
		r.engine.observer.Looked(r.check.ID, l.At.Since(began), l.Err)
	}
	return l
}

func (c Check) deadline() time.Duration {
	return cmp.Or(c.Deadline, DefaultDeadline)
}

// run takes one look. A check that panics has learnt nothing; the others go on.
func run(ctx context.Context, h *host.Host, c Check, done chan<- result) {
	ctx, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	defer func() {
		if trouble := recover(); trouble != nil {
			done <- result{err: fmt.Errorf("internal error: %v\n%s", trouble, debug.Stack())}
		}
	}()
	findings, err := c.Run(ctx, h)
	for i := range findings {
		findings[i].Check = c.ID
		findings[i].Severity = cmp.Or(c.Severity, findings[i].Severity)
	}
	done <- result{findings, err}
}

// LookOnce takes one look with each check, side by side, and returns the looks in the order of the checks. Each
// returned look is handed to tell as soon as it is there; tell may be nil.
func LookOnce(ctx context.Context, h *host.Host, checks []Check, tell func(finding.Observation)) []finding.Observation {
	looks := make([]finding.Observation, len(checks))
	e := NewEngine(h, slog.New(slog.DiscardHandler), checks, nil, Observer{}, func(l finding.Observation) {
		if tell != nil {
			tell(l)
		}
	})
	for _, last := range []bool{false, true} {
		var wg sync.WaitGroup
		for i, r := range e.runners {
			if r.check.RunAfter == last {
				wg.Go(func() {
					looks[i] = r.look(ctx)
					e.tell(looks[i])
				})
			}
		}
		wg.Wait()
	}
	return looks
}
