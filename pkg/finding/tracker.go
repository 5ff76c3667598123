package finding

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Tracker turns observations into believed state: hysteresis, damping of flaps, blindness. It is pure: the same
// observations give the same updates, and a tracker with the State of another continues where that one stopped. It is
// not safe for concurrent use.
type Tracker struct {
	policies map[string]Policy
	state    State
}

// NewTracker returns a tracker that continues from state, which may be nil. Policies are by check; a check without one
// has the zero policy.
func NewTracker(policies map[string]Policy, state State) *Tracker {
	t := &Tracker{policies: policies, state: State{}}
	maps.Copy(t.state, state)
	return t
}

// State returns the current believed state. It must not be modified; later observations do not change it.
func (t *Tracker) State() State { return maps.Clone(t.state) }

// Of returns the believed state of one check, or nil before its first observation. It must not be modified.
func (t *Tracker) Of(check string) *CheckState { return t.state[check] }

// Observe takes one observation into account and returns the changes.
func (t *Tracker) Observe(l Observation) []Update {
	old, ok := t.state[l.Check]
	if !ok {
		old = &CheckState{Status: StatusUnknown, Since: l.At}
	}
	next, updates := observe(*old, t.policies[l.Check], l)
	t.state[l.Check] = &next
	return updates
}

// Forget drops a check that no longer exists, and clears its findings.
func (t *Tracker) Forget(check string, at Timestamp) []Update {
	c, ok := t.state[check]
	if !ok {
		return nil
	}
	delete(t.state, check)
	var updates []Update
	for _, b := range c.Raised() {
		updates = append(updates, b.update(Cleared, at))
	}
	return updates
}

const (
	// maxSubjects bounds the subjects stored for one check, whatever it reports about a broken host.
	maxSubjects = 1000
	// flapWindow and flapHold damp flapping: a finding raised more than freeRaises times within the window must be
	// absent for flapHold, doubled with each further raise up to maxFlapHold, before it is cleared once more.
	flapWindow  = time.Hour
	freeRaises  = 3
	flapHold    = time.Minute
	maxFlapHold = 30 * time.Minute
	// blindReason is the reason of the finding that a check has been inconclusive for too long.
	blindReason = "CheckCouldNotTell"
)

// observe is the complete tracker for one check: it returns the state after an observation, and the changes.
func observe(c CheckState, p Policy, l Observation) (CheckState, []Update) {
	c.Subjects, c.Flaps = cloneSubjects(c.Subjects), maps.Clone(c.Flaps)
	c.newBoot(l.At)

	findings, malformed := mostSevere(l)
	if malformed != nil && l.Err == nil {
		l.Err = malformed
	}
	c.learn(l)

	var updates []Update
	for _, f := range findings {
		updates = append(updates, c.present(f, p.Raise, l.At)...)
	}
	for _, key := range slices.Sorted(maps.Keys(c.Subjects)) {
		b := c.Subjects[key]
		if b.Last != l.At && !b.isBlindness() && l.Conclusive(b.Subject) {
			updates = append(updates, c.absent(key, p.Clear, l.At)...)
		}
	}
	updates = append(updates, c.blindness(l, p)...)
	return c, append(updates, c.updateStatus(l, p)...)
}

// newBoot drops everything that ends with the boot: unfinished streaks and flaps.
func (c *CheckState) newBoot(now Timestamp) {
	if c.FirstRun.Boot == now.Boot {
		return
	}
	c.FirstRun, c.Flaps = now, nil
	for key, b := range c.Subjects {
		b.Absent, b.AbsentAt = 0, Timestamp{}
		if !b.IsRaised() {
			delete(c.Subjects, key)
		}
	}
}

// learn records whether the observation was conclusive. An error changes no finding: a subject that could not be
// observed is not therefore healthy.
func (c *CheckState) learn(l Observation) {
	c.Err, c.Access = "", nil
	notApplicable, ok := errors.AsType[*NotApplicableError](l.Err)
	switch {
	case ok:
		c.Why, c.Conclusive = notApplicable.Why, l.At
	case l.Err != nil:
		c.Err, c.Access = l.Err.Error(), AccessOf(l.Err)
	default:
		c.Why, c.Conclusive = "", l.At
	}
}

// present takes a finding into account.
func (c *CheckState) present(f Finding, hold Hold, now Timestamp) []Update {
	key := f.Subject.key()
	b, known := c.Subjects[key]
	if known && b.IsRaised() {
		b.Last, b.Absent, b.AbsentAt, b.Latest, b.Facts = now, 0, Timestamp{}, f.Message, f.Facts
		b.SuggestedAction, b.Part = f.SuggestedAction, f.Part
		if f.Severity == b.Severity && f.Reason == b.Reason && (!f.RepublishMessage || f.Message == b.Message) {
			return nil
		}
		f.BelowRaise = false
		b.Finding = f
		return []Update{b.update(Changed, now)}
	}
	if f.BelowRaise {
		delete(c.Subjects, key)
		return nil
	}
	if !known {
		if len(c.Subjects) >= maxSubjects { // an error may have kept older subjects that were not observed since
			c.Err = cmp.Or(c.Err, fmt.Sprintf("more than %d subjects: not all are tracked",
				maxSubjects))
			return nil
		}
		b = &Believed{First: now}
		c.Subjects[key] = b
	}
	b.Finding, b.Latest, b.Last = f, f.Message, now
	b.Runs++
	if !f.Certain && (b.Runs < hold.Runs || now.Since(b.First) < hold.For) {
		return nil
	}
	b.Raised, b.ID = now, f.Key().id(now)
	c.flapped(key, now)
	return []Update{b.update(Raised, now)}
}

// absent takes into account that a conclusive observation has no finding for a subject.
func (c *CheckState) absent(key string, hold Hold, now Timestamp) []Update {
	b := c.Subjects[key]
	if !b.IsRaised() {
		delete(c.Subjects, key)
		return nil
	}
	if b.Absent == 0 {
		b.AbsentAt = now
	}
	b.Absent++
	if b.Absent < hold.Runs || now.Since(b.AbsentAt) < max(hold.For, c.flapHold(key, now)) {
		return nil
	}
	delete(c.Subjects, key)
	return []Update{b.update(Cleared, now)}
}

// blindness keeps the finding that this check has been inconclusive for too long. Blindness for lack of access is not a
// finding of the check: other checks lack the same, and it is reported once.
func (c *CheckState) blindness(l Observation, p Policy) []Update {
	subject := Subject{Kind: "check", Name: l.Check}
	key := subject.key()
	b, known := c.Subjects[key]
	switch {
	case (c.Err == "" || c.Access != nil) && known:
		delete(c.Subjects, key)
		return []Update{b.update(Cleared, l.At)}
	case c.Err != "" && c.Access == nil && !known && c.BlindFor(l.At) >= p.blindAfter():
		f := Finding{Check: l.Check, Subject: subject, Severity: Warning, Reason: blindReason,
			Message: fmt.Sprintf("%s could not tell for %s: %s", l.Check, c.BlindFor(l.At).Round(time.Second), c.Err)}
		b := &Believed{Finding: f, Latest: f.Message, First: l.At, Last: l.At, Raised: l.At, Runs: 1,
			ID: f.Key().id(l.At)}
		c.Subjects[key] = b
		return []Update{b.update(Raised, l.At)}
	case known:
		b.Last, b.Latest = l.At, c.Err
	}
	return nil
}

// updateStatus derives the status of the check, and returns an update if it changed.
func (c *CheckState) updateStatus(l Observation, p Policy) []Update {
	to := c.status(l.At, p)
	if to == c.Status {
		return nil
	}
	from := c.Status
	c.Status, c.Since = to, l.At
	return []Update{{
		ID: Key{Check: l.Check, Subject: Subject{Kind: "status", Name: string(to)}}.id(l.At), Kind: StatusChanged,
		At: l.At, Check: l.Check,
		From: from, To: to,
	}}
}

// status is the status of the check as a whole. A recently observed fatal finding is proof enough, even if the rest of
// the check is blind.
func (c *CheckState) status(now Timestamp, p Policy) Status {
	fresh := func(s Timestamp) bool { return s.Boot == now.Boot && now.Since(s) < p.blindAfter() }
	blind := !fresh(c.Conclusive)
	fatal := false
	for _, b := range c.Subjects {
		if b.IsRaised() && b.Severity == Fatal && (!blind || fresh(b.Last)) {
			fatal = true
		}
	}
	switch {
	case fatal:
		return StatusFaulty
	case blind:
		return StatusUnknown
	case c.Why != "":
		return StatusNotApplicable
	}
	return StatusHealthy
}

// flapped records that the subject was raised.
func (c *CheckState) flapped(key string, now Timestamp) {
	if c.Flaps == nil {
		c.Flaps = map[string][]Timestamp{}
	}
	for k, raises := range c.Flaps {
		if recent := recentRaises(raises, now); len(recent) > 0 {
			c.Flaps[k] = recent
		} else {
			delete(c.Flaps, k)
		}
	}
	c.Flaps[key] = append(slices.Clip(c.Flaps[key]), now)
}

// flapHold is how much longer a flapping subject must be absent before it is cleared.
func (c *CheckState) flapHold(key string, now Timestamp) time.Duration {
	n := len(recentRaises(c.Flaps[key], now))
	if n <= freeRaises {
		return 0
	}
	return min(flapHold<<min(n-freeRaises-1, 10), maxFlapHold)
}

func recentRaises(raises []Timestamp, now Timestamp) []Timestamp {
	i := slices.IndexFunc(raises, func(s Timestamp) bool { return now.Since(s) < flapWindow })
	if i < 0 {
		return nil
	}
	return raises[max(i, len(raises)-32):]
}

// mostSevere returns the well-formed findings of an observation, one for each subject, and an error about the others.
func mostSevere(l Observation) ([]Finding, error) {
	var problems []error
	bySubject := map[Subject]Finding{}
	for _, f := range l.Findings {
		if f.Check == "" {
			f.Check = l.Check
		}
		if err := f.Problem(); err != nil {
			problems = append(problems, err)
			continue
		}
		if other, ok := bySubject[f.Subject]; ok && Compare(other, f) <= 0 {
			continue
		}
		bySubject[f.Subject] = f
	}
	findings := slices.SortedFunc(maps.Values(bySubject), Compare)
	if len(findings) > maxSubjects {
		problems = append(problems, fmt.Errorf("%d findings, %d of the least severe left out", len(findings),
			len(findings)-maxSubjects))
		findings = findings[:maxSubjects]
	}
	return findings, errors.Join(problems...)
}

func cloneSubjects(subjects map[string]*Believed) map[string]*Believed {
	clone := make(map[string]*Believed, len(subjects))
	for key, b := range subjects {
		copied := *b
		clone[key] = &copied
	}
	return clone
}

func (b *Believed) isBlindness() bool {
	return b.Reason == blindReason && b.Subject.Kind == "check"
}

func (b *Believed) update(kind UpdateKind, at Timestamp) Update {
	id := fmt.Sprintf("%s-%s", b.ID, kind)
	if kind == Changed {
		// the time distinguishes messages of one reason
		id += "-" + Key{Check: b.Reason + "/" + string(b.Severity)}.id(at)
	}
	return Update{ID: id, Kind: kind, At: at, Check: b.Check, Finding: b.Finding, First: b.First, Since: b.Raised}
}

func (p Policy) blindAfter() time.Duration {
	if p.BlindAfter > 0 {
		return p.BlindAfter
	}
	return DefaultBlindAfter
}
