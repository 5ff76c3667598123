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
	Speaker rules.Emitter // whose word it is; the zero value is the kernel
	// At orders records and measures between them; records without a time have the At of the record before.
	At time.Duration
	// Up is the time since boot, where it is known.
	Up      time.Duration
	UpKnown bool
}

// Match is what one record says, in the light of those before it.
type Match struct {
	Hit
	Severity finding.Severity // the rule's, or its grave one
	Raised   bool             // enough of them have come for a finding
	Again    bool             // another line of a report that was told of already
}

const (
	// maxSubjects bounds what is counted at a time; beyond, the subject that was new longest ago is forgotten.
	maxSubjects = 1024
	// A report is one as long as its lines follow each other closely: in time, and where lines have none, in number.
	reportGap   = 2 * time.Second
	reportLines = 200
)

// Tally counts matches for each rule and subject, and joins the lines of one report. Its memory is bounded; time is
// passed in with the records. It is not safe for use by several goroutines.
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

// tallied holds when one rule matched for one subject, as far back as its rates ask.
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

// NewTally returns a tally that has seen nothing.
func NewTally(m *Matcher) *Tally {
	t := &Tally{matcher: m}
	t.Reset()
	return t
}

// Reset forgets everything: another boot begins.
func (t *Tally) Reset() {
	t.counts, t.oldest, t.reports = map[tallyKey]*list.Element{}, list.New(), map[string]*report{}
}

// Observe returns what a record says; ok is false when it says nothing.
func (t *Tally) Observe(r Record) (m Match, ok bool) {
	t.line++
	hit, ok := t.matcher.MatchOf(r.Speaker, r.Text)
	if !ok {
		return Match{}, false
	}
	m = Match{Hit: hit, Severity: hit.Rule.Severity}
	if hit.Recovered {
		t.forget(tallyKey{hit.Rule, hit.Subject})
		return m, true
	}
	if r.UpKnown && r.Up < hit.Rule.BootGrace {
		return Match{}, false
	}
	if t.continues(&m, r) {
		return m, true
	}
	m.Raised, m.Severity = t.count(hit, r.At)
	if hit.Rule.Report != "" {
		t.reports[hit.Rule.Report] = &report{first: m, at: r.At, line: t.line}
	}
	return m, true
}

// continues reports whether a line belongs to the report that is open, and if so makes it speak of what the report
// does: lines of the same rule and subject do, and followers do.
func (t *Tally) continues(m *Match, r Record) bool {
	open := t.reports[m.Rule.Report]
	if m.Rule.Report == "" || open == nil || r.At-open.at > reportGap || r.At < open.at ||
		t.line-open.line > reportLines {
		return false
	}
	first := open.first
	same := m.Rule == first.Rule && (m.Subject == first.Subject || m.Subject.Kind == rules.NodeKind ||
		m.Subject.Name == first.Facts["from"])
	if !m.Rule.Continuation && (!same || m.Rule.Report == "oom") { // an OOM report begins anew with each first line
		return false
	}
	if m.Rule.Escalate.Count > 0 && !m.Rule.Aggregate && m.Pattern == first.Pattern && m.Subject == first.Subject {
		return false // what is counted may come many times a second
	}
	if pid, before := m.Facts["pid"], open.first.Facts["pid"]; pid != "" && before != "" && pid != before {
		return false // of another victim: its own report was not printed
	}
	open.at, open.line = r.At, t.line
	facts := m.Facts
	*m = open.first
	if m.Facts["pid"] == "" && facts["pid"] != "" { // the first line did not know the process
		if m.Facts == nil {
			m.Facts = map[string]string{}
		}
		m.Facts["pid"], m.Facts["process"] = facts["pid"], facts["process"]
		open.first.Facts = m.Facts
	}
	m.Again = true
	return true
}

// count notes a match and returns whether there have been enough for a finding, and of which severity it is.
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
	if n := len(c.times); n > 0 && at < c.times[n-1] { // time went back: what was counted is of another clock
		c.times = c.times[:0]
	}
	if len(c.times) == keep {
		c.times = append(c.times[:0], c.times[1:]...)
	}
	c.times = append(c.times, at)
	severity = rule.Severity
	if rule.Escalate.Count > 0 && c.reached(rule.Escalate) {
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
