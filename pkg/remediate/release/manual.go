package release

import (
	"time"
)

// Manual defines how a release requested by a person differs from the daemon's. The zero value does not differ.
type Manual struct {
	LockWait time.Duration    // how long to wait for another release
	OnWait   func(why string) // called once when the wait begins; may be nil
	OnRecord func(Record)     // called with each line of the journal once it is on disk; may be nil

	// Agreed is the plan that the person agreed to: only steps that act in it are done. Nil: no such limit.
	Agreed []Step
}

// Manual returns a runner that releases by hand.
func (r *Runner) Manual(b Manual) *Runner {
	of := *r
	of.manual = b
	return &of
}

// limit blocks the steps that the person did not agree to: between plan and answer a pause may end, or a budget become
// free.
func (b Manual) limit(steps []Step) {
	if b.Agreed == nil {
		return
	}
	agreed := make(map[string]Step, len(b.Agreed))
	for _, step := range b.Agreed {
		agreed[step.key()] = step
	}
	for i := range steps {
		s := &steps[i]
		shown, ok := agreed[s.key()]
		switch {
		case !s.Acts():
		case !ok:
			s.Blocked = "it was not in the plan that was agreed to"
		default:
			s.Blocked, s.refused = shown.Blocked, shown.refused
		}
	}
}
