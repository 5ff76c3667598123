// Package verdict judges an act of a pod against the promised time. It is pure.
//
// Delays of our own must not blame anybody: each mark lies between two times of our clock, and there is a verdict only
// if it is the same for all of them. If the observation was not good enough, the verdict is unknown.
package verdict

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Outcome is one of four; an act without a verdict is open.
type Outcome string

// The outcomes.
const (
	Open      Outcome = ""
	Delivered Outcome = "delivered"
	Missed    Outcome = "missed"
	Excluded  Outcome = "excluded"
	Unknown   Outcome = "unknown"
)

// Verdict is the judgement of an act.
type Verdict struct {
	Outcome Outcome
	Why     string        // for excluded and unknown
	Judged  record.Span   // the counted time, until the end or until now
	User    time.Duration // estimate of the time subtracted as the user's
}

// Judge judges an act. seen is the time up to which the watch has certainly shown everything: a miss waits for it.
func Judge(t *record.Timeline, promised time.Duration, now, seen time.Time) Verdict {
	if t.Exclude != "" {
		return Verdict{Outcome: Excluded, Why: t.Exclude}
	}
	begin, end := t.Begin(), t.End()
	if !begin.Known() {
		return Verdict{Outcome: Unknown, Why: "its begin was not observed"}
	}
	until := record.Earlier(now, seen)
	passed := t.Passed(begin, until)
	// A pod in between does not end the act of an owner if other creations are refused within the promised time.
	refusable := t.Act == record.Refusal && passed.Low <= promised
	requested := t.At(record.DeleteRequested)
	// Otherwise the verdict about a pod deleted before it is ready would depend on when it is given.
	deleted := t.Act != record.Deletion && requested.Known() && requested.Arrival.Before(end.Arrival)
	if end.Known() && !refusable && !deleted {
		user := userTime(t, end.Arrival)
		v := Verdict{Judged: minus(t.ByOurs(begin, end), user), User: user.Middle()}
		switch {
		case v.Judged.High <= promised:
			v.Outcome = Delivered
		case v.Judged.Low > promised:
			v.Outcome = Missed
		default:
			v.Outcome, v.Why = Unknown, "observed too late to tell"
		}
		return v
	}
	user := userTime(t, until)
	v := Verdict{Judged: minus(passed, user), User: user.Middle()}
	switch {
	case (t.Act == record.Creation || t.Replaces != "") && (t.At(record.Failed).Known() || requested.Known() || t.At(record.Gone).Known()):
		v.Outcome, v.Why = ended(t, v.Judged, promised)
	case t.InPlace() && requested.Known() && v.Judged.Low <= promised:
		v.Outcome, v.Why = Excluded, "deleted before it was due"
	case end.Known() && v.Judged.Low <= promised: // a refusal may follow
	case v.Judged.Low > promised && t.Act == record.Refusal &&
		t.At(record.RefusedLast).Arrival.Sub(begin.Arrival) < min(disorder, promised/2): // the pod may arrive before the Event
		v.Outcome, v.Why = Unknown, "refused once: whether it was overcome was not observed"
	case v.Judged.Low > promised:
		v.Outcome = Missed
	}
	return v
}

// disorder is the maximum interval between the arrivals of Events and pods of the same moment.
const disorder = 2 * time.Second

// ended judges a finished creation: refused by its node, removed by the system, or deleted by its user.
func ended(t *record.Timeline, judged record.Span, promised time.Duration) (Outcome, string) {
	requested := t.At(record.DeleteRequested)
	if !requested.Known() {
		requested = t.At(record.Gone)
	}
	if failed := t.At(record.Failed); failed.Known() && (!requested.Known() || !requested.Arrival.Before(failed.Arrival)) {
		return Missed, ""
	}
	if t.Disruption != "" {
		return Missed, ""
	}
	if t.Gated && !t.At(record.Ungated).Known() {
		return Excluded, "gated until it was deleted"
	}
	until := minus(t.ByOurs(t.Begin(), requested), userTime(t, requested.Arrival))
	switch {
	case until.High <= promised:
		return Excluded, "deleted before it was due"
	case until.Low > promised && judged.Low > promised:
		return Missed, ""
	case until.Low <= promised && requested.Late:
		return Unknown, "came and went unobserved"
	case judged.Low > promised:
		return Unknown, "observed too late to tell"
	}
	return Open, ""
}

// userTime returns the user's share of the time: gates and PostStart hooks for a creation; the stop of containers, up
// to the grace period, for the others.
func userTime(t *record.Timeline, until time.Time) (user record.Span) {
	for _, s := range stage.Of(t, until) {
		spent := s.Spent
		if s.End.Known() && s.End.Arrival.After(until) {
			spent = t.Passed(s.Start, until)
		}
		switch s.ID {
		case stage.Gated, stage.PostStart:
		case stage.Stop, stage.OldStop:
			spent.Low, spent.High = min(spent.Low, t.Grace), min(spent.High, t.Grace)
		default:
			continue
		}
		user.Low, user.High = user.Low+spent.Low, user.High+spent.High
	}
	// No stage can be longer than the act.
	most := t.Passed(t.Begin(), until).High
	if t.NoEvents && t.Act == record.Deletion { // a pod that stops looks the same as one that nobody has noticed
		user.High = max(user.High, t.Grace)
	}
	return record.Span{Low: min(user.Low, most), High: min(user.High, most)}
}

func minus(s, d record.Span) record.Span {
	return record.Span{Low: max(0, s.Low-d.High), High: max(0, s.High-d.Low)}
}
