package detect

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Witnesses knows which checks can read, on this host, the state that they are for. The kernel's log leaves to them what
// they can see better, and speaks for itself where they cannot.
type Witnesses struct {
	mu     sync.Mutex // guards checks and past
	checks map[string]witness
	past   pastWatch
}

// witness is how the looks of one check went. All times are since boot.
type witness struct {
	counts bool          // it knows only what happened since its first look
	from   time.Duration // its first look that learnt something; unset before
	looked bool          // there was such a look
	absent bool          // it cannot be looked at on this host
	blind  bool          // the last look learnt nothing
	since  time.Duration // when absent or blind began
}

// pastWatch is from when to when earlier runs of the agent watched, in one boot.
type pastWatch struct {
	Boot string                   `json:"boot"`
	From map[string]time.Duration `json:"from"`
	To   time.Duration            `json:"to"`
}

// trustBlind is how long a check that learns nothing is still waited for.
const trustBlind = 2 * time.Minute

const witnessesKey = "witnesses" // in the agent's memory

// Enable takes note of the checks that look. One that has not looked yet is believed able.
func (w *Witnesses) Enable(checks []Check) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.checks
	w.checks = make(map[string]witness, len(checks))
	for _, c := range checks {
		now := before[c.ID]
		now.counts = c.Counts
		w.checks[c.ID] = now
	}
}

// Saw takes note of how a look went.
func (w *Witnesses) Saw(l finding.Look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.checks[l.Check]
	if !known {
		return
	}
	none, notApplicable := errors.AsType[*finding.NotApplicableError](l.Err)
	_, partial := errors.AsType[*finding.PartialError](l.Err)
	now := witness{counts: before.counts, looked: before.looked, from: before.from, since: l.At.Up}
	now.absent = notApplicable && !none.Gone
	now.blind = l.Err != nil && !notApplicable && !partial
	if now.blind && before.blind {
		now.since = before.since
	}
	if !now.looked && !now.blind && !now.absent {
		now.looked, now.from = true, l.At.Up
	}
	w.checks[l.Check] = now
}

// Able reports whether a check can tell, now, what became of something that the kernel said at a time. Both times are since
// boot.
func (w *Witnesses) Able(check string, at, now time.Duration) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.checks[check]
	if !known || c.absent || c.blind && now-c.since >= trustBlind {
		return false
	}
	return !c.counts || !c.looked || at >= c.from || w.past.watched(check, at)
}

func (p pastWatch) watched(check string, at time.Duration) bool {
	from, known := p.From[check]
	return known && from <= at && at <= p.To
}

// save keeps since when checks that count have watched, for the next run of the agent.
func (w *Witnesses) save(memory Memory, at finding.Stamp) {
	if w == nil {
		return
	}
	w.mu.Lock()
	watch := pastWatch{Boot: at.Boot, From: map[string]time.Duration{}, To: at.Up}
	for id, c := range w.checks {
		if c.counts && c.looked {
			watch.From[id] = c.from
			if w.past.watched(id, w.past.To) {
				watch.From[id] = w.past.From[id]
			}
		}
	}
	w.mu.Unlock()
	if data, err := json.Marshal(watch); err == nil { // a map of numbers can always be written
		memory.Save(witnessesKey, data)
	}
}

// restore takes over what an earlier run has kept. What cannot be understood is as good as nothing: the kernel's log then
// speaks for itself.
func (w *Witnesses) restore(memory Memory, boot string) {
	data, ok := memory.Load(witnessesKey)
	if w == nil || !ok {
		return
	}
	var past pastWatch
	if json.Unmarshal(data, &past) != nil || past.Boot != boot {
		return
	}
	w.mu.Lock()
	w.past = past
	w.mu.Unlock()
}
