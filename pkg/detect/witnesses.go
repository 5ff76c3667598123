package detect

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// StateSources knows which checks can read their state on this host. If the check for a kernel log line can, the check
// decides; if not, the line alone is the evidence. The zero value knows none.
type StateSources struct {
	mu     sync.Mutex // guards checks and past
	checks map[string]witness
	past   pastWatch
}

// witness is the record of the runs of one check. All times are since boot.
type witness struct {
	counts   bool          // it sees only the time since its first run
	from     time.Duration // its first run without an error; unset before
	observed bool          // there was a run without an error
	absent   bool          // it does not apply to this host
	blind    bool          // the last run had an error
	since    time.Duration // when absent or blind began
}

// pastWatch is when earlier runs of the agent observed, in one boot: for each counter-based check the spans of time
// between its first run and the end of the agent. Between two spans the check saw no events.
type pastWatch struct {
	Boot    string                 `json:"boot"`
	Watched map[string][]watchSpan `json:"watched"` // in order
}

type watchSpan struct {
	From time.Duration `json:"from"` // since boot
	To   time.Duration `json:"to"`
}

// maxWatchSpans is how many spans of a check are kept. Beyond it, the spans with the shortest gap between them are
// joined.
const maxWatchSpans = 32

// trustBlind is how long a check with errors still counts as working.
const trustBlind = 2 * time.Minute

const witnessesKey = "witnesses"

// Enable sets the enabled checks. A check that has not run yet counts as working.
func (w *StateSources) Enable(checks []Check) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.checks
	w.checks = make(map[string]witness, len(checks))
	for _, c := range checks {
		now := before[c.ID]
		now.counts = c.CounterBased
		w.checks[c.ID] = now
	}
}

// Observe records the result of a run.
func (w *StateSources) Observe(l finding.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.checks[l.Check]
	if !known {
		return
	}
	none, notApplicable := errors.AsType[*finding.NotApplicableError](l.Err)
	_, partial := errors.AsType[*finding.PartialError](l.Err)
	now := witness{counts: before.counts, observed: before.observed, from: before.from, since: l.At.SinceBoot}
	now.absent = notApplicable && !none.Gone
	now.blind = l.Err != nil && !notApplicable && !partial
	if now.blind && before.blind {
		now.since = before.since
	}
	if !now.observed && !now.blind && !now.absent {
		now.observed, now.from = true, l.At.SinceBoot
	}
	w.checks[l.Check] = now
}

// CanConfirm reports whether a check can now decide about a line that the kernel logged at a time. Both times are since
// boot.
func (w *StateSources) CanConfirm(check string, at, now time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.checks[check]
	if !known || c.absent || c.blind && now-c.since >= trustBlind {
		return false
	}
	return !c.counts || !c.observed || at >= c.from || w.past.watched(check, at)
}

func (p pastWatch) watched(check string, at time.Duration) bool {
	return slices.ContainsFunc(p.Watched[check], func(s watchSpan) bool { return s.From <= at && at <= s.To })
}

// Save saves when counter-based checks observed, for the next run of the agent.
func (w *StateSources) Save(memory StateStore, at finding.Timestamp) {
	w.mu.Lock()
	watch := pastWatch{Boot: at.Boot, Watched: map[string][]watchSpan{}}
	for id, c := range w.checks {
		if !c.counts {
			continue
		}
		spans := w.past.Watched[id]
		if c.observed {
			spans = fewSpans(append(slices.Clone(spans), watchSpan{c.from, at.SinceBoot}))
		}
		if len(spans) > 0 {
			watch.Watched[id] = spans
		}
	}
	w.mu.Unlock()
	Saved[pastWatch]{memory, witnessesKey}.Save(watch)
}

// fewSpans joins spans until at most maxWatchSpans are left.
func fewSpans(spans []watchSpan) []watchSpan {
	for len(spans) > maxWatchSpans {
		join := 0 // with the next one
		for i := range len(spans) - 1 {
			if spans[i+1].From-spans[i].To < spans[join+1].From-spans[join].To {
				join = i
			}
		}
		spans[join].To = spans[join+1].To
		spans = slices.Delete(spans, join+1, join+2)
	}
	return spans
}

// Restore takes the record of an earlier run in this boot. Without it the kernel log alone is the evidence.
func (w *StateSources) Restore(memory StateStore, boot string) {
	past, ok := Saved[pastWatch]{memory, witnessesKey}.Load(func(p pastWatch) bool { return p.Boot == boot })
	if !ok {
		return
	}
	w.mu.Lock()
	w.past = past
	w.mu.Unlock()
}
