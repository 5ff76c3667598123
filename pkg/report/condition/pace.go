package condition

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// settle collects the reports of several checks about one fault.
	settle = 50 * time.Millisecond
	// coalesce is the shortest time between two writes.
	coalesce = time.Second
	// detailBurst and detailEvery bound the writes for a new reason or message of an existing fault.
	detailBurst = 5
	detailEvery = time.Minute
)

// pace decides when to write. It is pure: the caller passes the time.
type pace struct {
	refresh time.Duration
	spread  time.Duration
	rand    func() float64
	details *report.Budgets

	wrote     time.Time // last attempt to write
	promptAt  time.Time // when a prompt difference is due; zero if there is none
	calmAt    time.Time // when a calm difference is due; zero if there is none
	refreshAt time.Time // when everything is written again, changed or not
	retryAt   time.Time // after a failure; zero if the last attempt succeeded
}

// start starts the timers: the first calm write and the first refresh come at random moments, since a rollout starts
// ten thousand agents at once.
func (p *pace) start(now time.Time) {
	p.details = report.NewBudgets(detailBurst, detailEvery)
	p.calmAt = now.Add(report.Jitter(p.spread, p.rand))
	p.refreshAt = now.Add(report.Jitter(p.refresh, p.rand))
}

// due returns when to act on a plan. Before the first read of the Node, any fault is prompt and everything else is
// calm.
func (p *pace) due(now time.Time, pl plan, adopted bool) time.Time {
	urgency := pl.haste
	if !adopted {
		urgency = calm
		if pl.bad {
			urgency = prompt
		}
	}
	p.note(now, urgency)
	if !p.retryAt.IsZero() {
		return p.retryAt
	}
	at := p.refreshAt
	switch urgency {
	case prompt:
		at = report.Earliest(at, later(p.promptAt, p.wrote.Add(coalesce)))
	case detail:
		at = report.Earliest(at, later(p.promptAt, p.wrote.Add(coalesce), p.details.Next("", now)))
	case calm:
		at = report.Earliest(at, later(p.calmAt, p.wrote.Add(coalesce)))
	}
	return at
}

// note starts or ends the wait of a difference.
func (p *pace) note(now time.Time, urgency haste) {
	if urgency < detail {
		p.promptAt = time.Time{}
	} else if p.promptAt.IsZero() {
		p.promptAt = now.Add(settle)
	}
	if urgency == none {
		p.calmAt = time.Time{}
	} else if urgency == calm && p.calmAt.IsZero() {
		p.calmAt = now.Add(report.Jitter(p.spread, p.rand))
	}
}

// settled notes that no difference is left.
func (p *pace) settled(now time.Time, urgency haste) {
	if urgency == detail {
		p.details.Take("", now)
	}
	p.promptAt, p.calmAt, p.retryAt = time.Time{}, time.Time{}, time.Time{}
	// A tenth either way spreads agents that an outage has synchronized.
	p.refreshAt = now.Add(p.refresh*9/10 + report.Jitter(p.refresh/5, p.rand))
}

// failed notes that an attempt failed and how long to wait.
func (p *pace) failed(now time.Time, wait time.Duration) { p.retryAt = now.Add(wait) }

func later(moments ...time.Time) time.Time {
	var last time.Time
	for _, m := range moments {
		if m.After(last) {
			last = m
		}
	}
	return last
}
