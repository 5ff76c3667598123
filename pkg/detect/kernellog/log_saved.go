package kernellog

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// saved is the state of a Log for the next run of the agent in the same boot: the kernel keeps only its newest records.
type saved struct {
	Boot string        `json:"boot"`
	Next uint64        `json:"next"` // sequence number of the first unread record
	Last bool          `json:"last"` // no record was read after this was saved
	Held []savedRecord `json:"held,omitempty"`

	Lost   uint64        `json:"lost,omitempty"`
	LostAt time.Duration `json:"lostAt,omitempty"`
}

type savedRecord struct {
	Rule     string            `json:"rule"`
	Subject  finding.Subject   `json:"subject"`
	Severity finding.Severity  `json:"severity"`
	Count    int               `json:"count"`
	First    time.Duration     `json:"first"`
	Last     time.Duration     `json:"last"`
	Text     string            `json:"text"`
	Facts    map[string]string `json:"facts,omitempty"`
	Seen     sighting          `json:"seen,omitzero"`
}

// Moved reports whether the matches have changed since the last save.
func (l *Log) Moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// snapshot returns the state for the next run in this boot. last means that no more records will be observed.
func (l *Log) snapshot(boot string, last bool) saved {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := saved{Boot: boot, Next: l.seen, Last: last, Lost: l.lost, LostAt: l.lostAt}
	for key, h := range l.held {
		s.Held = append(s.Held, savedRecord{key.rule.ID, key.subject, h.severity, h.count, h.first, h.last, h.text,
			h.facts, h.seen})
	}
	// the oldest first: the order in which they were added
	slices.SortFunc(s.Held, func(a, b savedRecord) int { return cmp.Compare(a.Last, b.Last) })
	l.moved = false
	return s
}

// restore takes the state of an earlier run in this boot, before the first record is observed. It drops records of
// rules that no longer exist.
func (l *Log) restore(s saved) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen > 0 {
		return
	}
	l.reported, l.lost, l.lostAt = s.Next, s.Lost, s.LostAt
	if s.Last {
		l.complete = s.Next
	}
	for _, r := range s.Held {
		rule := l.tally.matcher.rule(r.Rule)
		if rule == nil || !r.Severity.Valid() || len(l.held) >= maxHeld {
			continue
		}
		h := &held{key: tallyKey{rule, r.Subject}, severity: r.Severity, count: r.Count, first: r.First, last: r.Last,
			text: r.Text, facts: r.Facts, seen: r.Seen}
		if l.held[h.key] == nil {
			l.held[h.key] = h
			h.place = l.order(h.severity).PushBack(h)
		}
	}
}

// rule returns the rule with an ID, or nil.
func (m *Matcher) rule(id string) *rules.Rule {
	for _, c := range m.Rules {
		if c.Rule.ID == id {
			return c.Rule
		}
	}
	return nil
}
