package kernellog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// saved is what a Log leaves for the next run of the agent in the same boot: the kernel keeps only its newest records.
type saved struct {
	Boot string        `json:"boot"`
	Next uint64        `json:"next"` // sequence number of the first record that was not seen
	Last bool          `json:"last"` // nothing was seen after this was saved
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
}

// Moved reports whether what is held has changed since it was last saved.
func (l *Log) Moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// Save returns what the next run in the boot must know. last says that nothing will be observed any more.
func (l *Log) Save(boot string, last bool) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := saved{Boot: boot, Next: l.seen, Last: last, Lost: l.lost, LostAt: l.lostAt}
	for key, h := range l.held {
		s.Held = append(s.Held, savedRecord{key.rule.ID, key.subject, h.severity, h.count, h.first, h.last, h.text,
			h.facts})
	}
	// What was said longest ago first: the order in which they were held.
	slices.SortFunc(s.Held, func(a, b savedRecord) int { return cmp.Compare(a.Last, b.Last) })
	data, err := json.Marshal(s)
	if err == nil {
		l.moved = false
	}
	return data, err
}

// Restore takes over what an earlier run has saved, before the first record is observed. What it said of another boot
// is over, and what it said by a rule that is no more is forgotten.
func (l *Log) Restore(data []byte, boot string) error {
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("saved kernel log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Boot != boot || l.seen > 0 {
		return nil
	}
	l.told, l.lost, l.lostAt = s.Next, s.Lost, s.LostAt
	if s.Last {
		l.complete = s.Next
	}
	for _, r := range s.Held {
		rule := l.tally.matcher.rule(r.Rule)
		if rule == nil || !r.Severity.Valid() || len(l.held) >= maxHeld {
			continue
		}
		h := &held{key: tallyKey{rule, r.Subject}, severity: r.Severity, count: r.Count, first: r.First, last: r.Last,
			text: r.Text, facts: r.Facts}
		if l.held[h.key] == nil {
			l.held[h.key] = h
			h.place = l.order(h.severity).PushBack(h)
		}
	}
	return nil
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
