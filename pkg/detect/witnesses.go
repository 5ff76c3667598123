package detect

import (
	"errors"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Witnesses knows which checks can read, on this host, the state that they are for. The kernel's log leaves to them what
// they can see better, and speaks for itself where they cannot.
type Witnesses struct {
	mu     sync.Mutex // guards checks
	checks map[string]witness
}

// witness is how the last looks of one check went.
type witness struct {
	absent bool          // there is nothing of the kind on this host
	blind  bool          // it learns nothing
	since  time.Duration // since boot, when that began
}

// trustBlind is how long a check that learns nothing is still waited for.
const trustBlind = 2 * time.Minute

// enabled takes note of the checks that there are. One that has not looked yet is believed able.
func (w *Witnesses) enabled(checks []Check) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks = make(map[string]witness, len(checks))
	for _, c := range checks {
		w.checks[c.ID] = witness{}
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
	_, absent := errors.AsType[*finding.NotApplicableError](l.Err)
	_, partial := errors.AsType[*finding.PartialError](l.Err)
	now := witness{absent: absent, blind: l.Err != nil && !absent && !partial, since: l.At.Up}
	if now.blind && before.blind {
		now.since = before.since
	}
	w.checks[l.Check] = now
}

// Able reports whether a check can read its state, at a time since boot.
func (w *Witnesses) Able(check string, now time.Duration) bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.checks[check]
	return known && !c.absent && (!c.blind || now-c.since < trustBlind)
}
