package notify

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Progress is the proof that an engine works: every one of its tasks comes to an end again and again, each within its
// own limit. What ends may be a good result, an error, or that a hung task was given up; only silence is no progress.
// One busy task does not cover for another that stands still.
type Progress struct {
	limits map[string]time.Duration
	begun  time.Time     // monotonic, as all times here: the clock may be set
	done   chan struct{} // closed when every task has ended once

	mu   sync.Mutex // guards last
	last map[string]time.Time
}

// NewProgress returns a progress that begins now. Limits are by task: how long the time between two ends may be.
func NewProgress(limits map[string]time.Duration) *Progress {
	p := &Progress{limits: limits, begun: time.Now(), done: make(chan struct{}), last: map[string]time.Time{}}
	if len(limits) == 0 {
		close(p.done)
	}
	return p
}

// Saw takes note that a task has come to an end. Tasks without a limit are nobody's proof.
func (p *Progress) Saw(task string) {
	if _, ok := p.limits[task]; !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.last)
	p.last[task] = time.Now()
	if before < len(p.limits) && len(p.last) == len(p.limits) {
		close(p.done)
	}
}

// Done is closed when every task has come to an end at least once.
func (p *Progress) Done() <-chan struct{} { return p.done }

// Waiting returns the tasks that have not come to an end yet, sorted.
func (p *Progress) Waiting() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var waiting []string
	for task := range p.limits {
		if _, ok := p.last[task]; !ok {
			waiting = append(waiting, task)
		}
	}
	slices.Sort(waiting)
	return waiting
}

// Stuck returns an error that names the tasks which are overdue, nil when there are none.
func (p *Progress) Stuck() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var overdue []string
	for task, limit := range p.limits {
		since := p.begun
		if last, ok := p.last[task]; ok {
			since = last
		}
		if silence := time.Since(since); silence > limit {
			overdue = append(overdue, fmt.Sprintf("%s for %s (limit %s)", task, silence.Round(time.Second), limit))
		}
	}
	if len(overdue) == 0 {
		return nil
	}
	slices.Sort(overdue)
	return fmt.Errorf("no progress: %s", strings.Join(overdue, ", "))
}
