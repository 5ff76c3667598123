package notify

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Progress proves that an engine works: each of its tasks keeps ending, within its own limit. A task may end with a
// good result, an error, or because it hung and was abandoned; only silence means no progress. One busy task does not
// hide another stuck one.
type Progress struct {
	limits map[string]time.Duration
	start  time.Time     // monotonic, like all times here: the clock may be set
	done   chan struct{} // closed when every task has ended once

	mu   sync.Mutex           // guards ends
	ends map[string]time.Time // the last end of each task
}

// NewProgress returns a progress that begins now. Limits are by task: the longest time between two ends.
func NewProgress(limits map[string]time.Duration) *Progress {
	p := &Progress{limits: limits, start: time.Now(), done: make(chan struct{}), ends: map[string]time.Time{}}
	if len(limits) == 0 {
		close(p.done)
	}
	return p
}

// Ended records that a task has ended. Tasks without a limit are ignored.
func (p *Progress) Ended(task string) {
	if _, ok := p.limits[task]; !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.ends)
	p.ends[task] = time.Now()
	if before < len(p.limits) && len(p.ends) == len(p.limits) {
		close(p.done)
	}
}

// Done is closed when every task has ended at least once.
func (p *Progress) Done() <-chan struct{} { return p.done }

// Waiting returns the tasks that have not ended yet, sorted.
func (p *Progress) Waiting() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var waiting []string
	for task := range p.limits {
		if _, ok := p.ends[task]; !ok {
			waiting = append(waiting, task)
		}
	}
	slices.Sort(waiting)
	return waiting
}

// Stuck returns an error that names the overdue tasks, nil if there are none.
func (p *Progress) Stuck() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var overdue []string
	for task, limit := range p.limits {
		since := p.start
		if last, ok := p.ends[task]; ok {
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
