package main

import "time"

// Verdict of an act. Open acts were not due at the end of the log.
type Verdict struct {
	UID        string  `json:"uid"`
	Act        string  `json:"act"`
	Generation int64   `json:"generation,omitempty"` // of an upgrade in place
	Namespace  string  `json:"namespace"`
	Name       string  `json:"name"`
	Verdict    string  `json:"verdict"` // delivered, missed, excluded, unknown, open
	Why        string  `json:"why,omitempty"`
	Judged     float64 `json:"judgedSeconds"`
}

// span is a duration with its bounds.
type span struct{ low, high time.Duration }

func (g *game) verdicts(promised time.Duration) (all []Verdict) {
	add := func(p *pod, act string, generation int64, verdict, why string, judged span) {
		all = append(all, Verdict{p.uid, act, generation, p.namespace, p.name, verdict, why, judged.low.Seconds()})
	}
	for _, p := range g.order {
		verdict, why, judged := p.creation(p.created, 0, promised, g.until)
		add(p, "creation", 0, verdict, why, judged)
		if old := p.replaces; old != nil {
			verdict, why, judged = p.creation(old.deleted, old.stop(g.until), promised, g.until)
			add(p, "upgrade", 0, verdict, why, judged)
		}
		for _, c := range p.changes {
			verdict, why, judged = p.upgrade(c, promised, g.until)
			add(p, "upgrade", c.generation, verdict, why, judged)
		}
		if !p.deleted.IsZero() {
			verdict, why, judged = p.deletion(promised, g.until)
			add(p, "deletion", 0, verdict, why, judged)
		}
	}
	return all
}

func (p *pod) excluded() string {
	switch {
	case p.static:
		return "static pod"
	case p.excludedNamespace:
		return "namespace by configuration"
	}
	return ""
}

// creation judges a creation, or the upgrade that replaces another pod, whose deletion began earlier.
func (p *pod) creation(begin time.Time, stop, promised time.Duration, until time.Time) (verdict, why string, judged span) {
	if why := p.excluded(); why != "" {
		return "excluded", why, span{}
	}
	if p.young && begin.Equal(p.created) {
		return "excluded", "DaemonSet pod of a new node", span{}
	}
	passed := func(end time.Time) span {
		user := p.user(end)
		whole := end.Sub(begin) - stop
		return span{max(0, whole-user.high), max(0, whole-user.low)}
	}
	end := p.ran
	if p.always {
		end = p.ready
	}
	left := p.deleted
	if !end.IsZero() && (left.IsZero() || !end.After(left)) {
		judged = passed(end)
		return compare(judged, promised), "", judged
	}
	switch {
	case !p.failed.IsZero() && (left.IsZero() || !left.Before(p.failed)):
		return "missed", "failed without a start", passed(p.failed)
	case !left.IsZero() && p.disrupted:
		return "missed", "removed by the system", passed(left)
	case !left.IsZero() && p.gated && p.ungated.IsZero():
		return "excluded", "gated until it was deleted", span{}
	case !left.IsZero():
		judged = passed(left)
		if compare(judged, promised) == "delivered" {
			return "excluded", "deleted before it was due", judged
		}
		return compare(judged, promised), "", judged
	}
	return due(passed(until), promised)
}

// user is the time of gates and PostStart hooks.
func (p *pod) user(end time.Time) (user span) {
	if p.gated {
		until := end
		if !p.ungated.IsZero() && p.ungated.Before(end) {
			until = p.ungated
		}
		user.low, user.high = until.Sub(p.created), until.Sub(p.created)
	}
	for i, c := range p.containers {
		if !c.hook || c.started.high.IsZero() {
			continue
		}
		stop := bounds{end, end}
		if !c.shown.IsZero() && c.shown.Before(end) {
			stop = bounds{c.shown, c.shown}
		}
		for _, next := range p.containers[i+1:] {
			if s := next.started; !s.high.IsZero() && s.low.Before(stop.low) {
				stop = s
			}
		}
		user.low += max(0, stop.low.Sub(c.started.high))
		user.high += max(0, stop.high.Sub(c.started.low))
	}
	return user
}

// stop is the time in which the containers stopped, up to the grace period.
func (p *pod) stop(until time.Time) time.Duration {
	begin, end := p.noticed, p.ended
	if end.IsZero() {
		end = p.gone
	}
	if end.IsZero() {
		end = until
	}
	if begin.IsZero() || p.node == "" {
		return 0
	}
	return min(p.grace, max(0, end.Sub(begin)))
}

func (p *pod) deletion(promised time.Duration, until time.Time) (verdict, why string, judged span) {
	if why := p.excluded(); why != "" {
		return "excluded", why, span{}
	}
	end := p.gone
	if end.IsZero() {
		end = until
	}
	spent := end.Sub(p.deleted) - p.stop(until)
	judged = span{spent, spent}
	if p.gone.IsZero() {
		return due(judged, promised)
	}
	return compare(judged, promised), "", judged
}

func (p *pod) upgrade(c *change, promised time.Duration, until time.Time) (verdict, why string, judged span) {
	if why := p.excluded(); why != "" {
		return "excluded", why, span{}
	}
	passed := func(end time.Time) span {
		stop := time.Duration(0)
		if !c.noticed.IsZero() {
			stopped := c.stopped
			if stopped.IsZero() {
				stopped = c.noticed
			}
			stop = min(p.specGrace, max(0, stopped.Sub(c.noticed)))
		}
		spent := end.Sub(c.at) - stop
		return span{spent, spent}
	}
	switch left := p.deleted; {
	case !c.done.IsZero() && (left.IsZero() || !c.done.After(left)):
		judged = passed(c.done)
		return compare(judged, promised), "", judged
	case !left.IsZero() && passed(left).high <= promised:
		return "excluded", "deleted before it was due", passed(left)
	}
	return due(passed(until), promised)
}

func compare(judged span, promised time.Duration) string {
	switch {
	case judged.high <= promised:
		return "delivered"
	case judged.low > promised:
		return "missed"
	}
	return "unknown"
}

// due judges an unfinished act.
func due(judged span, promised time.Duration) (verdict, why string, _ span) {
	if judged.low > promised {
		return "missed", "", judged
	}
	return "open", "", judged
}
