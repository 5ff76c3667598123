package kernellog

import (
	"container/list"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Record is one message of the kernel.
type Record struct {
	Text    []byte        // without priority, time and caller
	Emitter rules.Emitter // its writer; the zero value is the kernel
	Level   Level         // of a line of the kernel
	// At orders records and measures the time between them; a record without a time has the At of the record before.
	At time.Duration
	// Up is the time since boot, if known.
	Up      time.Duration
	UpKnown bool
}

// Match is the match of one record, in the context of the records before it.
type Match struct {
	Hit
	Severity finding.Severity // the rule's, or EscalateSeverity
	Raised   bool             // there are enough matches for a finding
	Again    bool             // another line of an open report
}

const (
	// maxSubjects bounds the counted subjects; beyond it, the oldest one is dropped.
	maxSubjects = 1024
	// Lines belong to one report as long as they are close together: in time, or, without times, in number.
	reportGap   = 2 * time.Second
	reportLines = 200
	// Drivers log many harmless warnings while the machine starts.
	warningGrace = 2 * time.Minute
	// systemd logs why a unit failed, and directly after it that the unit could not be started.
	descriptionLines = 3
)

// Tally counts matches for each rule and subject, and joins the lines of one report. Its memory is bounded; the records
// provide the time. It is not safe for concurrent use.
type Tally struct {
	matcher *Matcher
	counts  map[tallyKey]*list.Element
	oldest  *list.List // of *tallied, the oldest first
	reports map[string]*report
	line    int
}

type tallyKey struct {
	rule    *rules.Rule
	subject finding.Subject
}

// tallied has the times at which one rule matched for one subject, as far back as its rates need.
type tallied struct {
	key   tallyKey
	times []time.Duration
}

// report is the newest report of its kind.
type report struct {
	first Match // its first line
	at    time.Duration
	line  int
}

// NewTally returns an empty tally.
func NewTally(m *Matcher) *Tally {
	t := &Tally{matcher: m}
	t.Reset()
	return t
}

// Reset drops all state: another boot begins.
func (t *Tally) Reset() {
	t.counts, t.oldest, t.reports = map[tallyKey]*list.Element{}, list.New(), map[string]*report{}
}

// Observe returns the match of a record; ok is false if there is none.
func (t *Tally) Observe(r Record) (m Match, ok bool) {
	t.line++
	hit, ok := t.matcher.match(r.Emitter, r.Level, r.Text)
	if !ok {
		return Match{}, false
	}
	m = Match{Hit: hit, Severity: hit.Rule.Severity}
	if hit.Recovered {
		t.forget(tallyKey{hit.Rule, hit.Subject})
		return m, true
	}
	if r.UpKnown && (r.Up < hit.Rule.BootGrace || hit.Rule.Errors && r.Level == LevelWarning && r.Up < warningGrace) {
		return Match{}, false
	}
	if t.continues(&m, r) || t.describes(&m, r) {
		return m, true
	}
	m.Raised, m.Severity = t.count(hit, r.At)
	if hit.Rule.Report != "" {
		t.reports[hit.Rule.Report] = &report{first: m, at: r.At, line: t.line}
	}
	return m, true
}

// continues reports whether a line belongs to the open report, and if so gives it the match of that report: lines of
// the same rule and subject do, and continuations do.
func (t *Tally) continues(m *Match, r Record) bool {
	open := t.reports[m.Rule.Report]
	if m.Rule.Report == "" || open == nil || r.At-open.at > reportGap || r.At < open.at ||
		t.line-open.line > reportLines {
		return false
	}
	first := open.first
	same := m.Rule == first.Rule && (m.Subject == first.Subject || m.Subject.Kind == rules.NodeKind ||
		m.Subject.Name == first.Facts["from"])
	if !m.Rule.Continuation && (!same || m.Rule.Report == "oom") { // each first line begins a new OOM report
		return false
	}
	if m.Rule.Escalate.Count > 0 && !m.Rule.Aggregate && m.Pattern == first.Pattern && m.Subject == first.Subject {
		return false // counted lines may come many times a second
	}
	if pid, before := m.Facts["pid"], open.first.Facts["pid"]; pid != "" && before != "" && pid != before {
		return false // of another victim, whose own report was not printed
	}
	open.at, open.line = r.At, t.line
	facts := m.Facts
	*m = open.first
	if m.Facts["pid"] == "" && facts["pid"] != "" { // the first line did not have the process
		if m.Facts == nil {
			m.Facts = map[string]string{}
		}
		m.Facts["pid"], m.Facts["process"] = facts["pid"], facts["process"]
		open.first.Facts = m.Facts
	}
	m.Again = true
	return true
}

// describes reports whether a line that names a unit only by its description ("Failed to start Foo Daemon.") follows
// the line that names it, and if so gives it the match of that line: the unit failed once.
func (t *Tally) describes(m *Match, r Record) bool {
	if m.Facts["description"] == "" {
		return false
	}
	var unit *report
	for _, open := range t.reports {
		if open.first.Subject.Kind == m.Subject.Kind && (unit == nil || open.line > unit.line) {
			unit = open
		}
	}
	if unit == nil || t.line-unit.line > descriptionLines || r.At-unit.at > reportGap || r.At < unit.at {
		return false
	}
	unit.at, unit.line = r.At, t.line
	*m = unit.first
	m.Again = true
	return true
}

// count counts a match and returns whether there are enough for a finding, and its severity.
func (t *Tally) count(hit Hit, at time.Duration) (raised bool, severity finding.Severity) {
	rule := hit.Rule
	keep := max(rule.Raise.Count, rule.Escalate.Count)
	if keep <= 1 && rule.Escalate.Count == 0 {
		return true, rule.Severity
	}
	key := tallyKey{rule: rule}
	if !rule.Aggregate {
		key.subject = hit.Subject
	}
	c := t.tallied(key)
	if n := len(c.times); n > 0 && at < c.times[n-1] { // time went back: the counts are from another clock
		c.times = c.times[:0]
	}
	if len(c.times) == keep {
		c.times = append(c.times[:0], c.times[1:]...)
	}
	c.times = append(c.times, at)
	severity = rule.Severity
	if rule.Escalate.Count > 0 && (hit.Dire || c.reached(rule.Escalate)) {
		severity = rule.EscalateSeverity
	}
	return rule.Raise.Count <= 1 || c.reached(rule.Raise), severity
}

func (c *tallied) reached(rate rules.Rate) bool {
	first := len(c.times) - rate.Count
	return first >= 0 && c.times[len(c.times)-1]-c.times[first] <= rate.Within
}

func (t *Tally) tallied(key tallyKey) *tallied {
	if e, ok := t.counts[key]; ok {
		return e.Value.(*tallied)
	}
	if len(t.counts) >= maxSubjects {
		t.forget(t.oldest.Front().Value.(*tallied).key)
	}
	c := &tallied{key: key}
	t.counts[key] = t.oldest.PushBack(c)
	return c
}

func (t *Tally) forget(key tallyKey) {
	if e, ok := t.counts[key]; ok {
		t.oldest.Remove(e)
		delete(t.counts, key)
	}
}
