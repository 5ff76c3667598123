package kernellog

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// maxHeld bounds the matches in a Log; beyond it, the least severe is dropped first, and the oldest among equals.
const maxHeld = 512

// lostExpiry is how long the loss of records is reported.
const lostExpiry = 10 * time.Minute

// Log keeps the matches of this boot, each until its rule expires. Records come from one source; findings can be read
// at any time.
type Log struct {
	programs bool // a record that a program wrote counts like one of the kernel

	mu     sync.Mutex // guards all below
	tally  *Tally
	held   map[tallyKey]*held
	orders map[finding.Severity]*list.List // the elements of held by severity, the oldest first
	tried  chan struct{}                   // closed when the existing records have been read, or cannot be
	// why the log cannot be read; if nil, the absence of records is evidence
	unreadable error
	seen       uint64        // sequence number after the newest record; 0 before the first
	reported   uint64        // records before this number were reported by an earlier run
	complete   uint64        // the same, if that run exited cleanly: it left no records after them
	moved      bool          // held has changed since the last save
	lost       uint64        // records that the kernel dropped before they could be read
	lostAt     time.Duration // when the last of them were lost
	searchedAt time.Duration // when subjects were last searched for
}

// held is the match of one rule and subject.
type held struct {
	key      tallyKey
	place    *list.Element
	severity finding.Severity
	count    int
	first    time.Duration // time since boot
	last     time.Duration
	text     string // first line of the newest match
	facts    map[string]string
	seen     sighting // of the subject after the newest record; zero: none
}

// NewLog returns an empty log.
func NewLog(m *Matcher) *Log {
	return &Log{tally: NewTally(m), held: map[tallyKey]*held{}, orders: map[finding.Severity]*list.List{},
		tried: make(chan struct{})}
}

// setReadable records why the log cannot be read, or nil: all existing records were read, and from now on the absence
// of records is evidence.
func (l *Log) setReadable(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreadable = why
	select {
	case <-l.tried:
	default:
		close(l.tried)
	}
}

// Await waits until all existing records were read. It returns why the log cannot be read.
func (l *Log) Await(ctx context.Context) error {
	select {
	case <-l.tried:
	case <-ctx.Done():
		return fmt.Errorf("the kernel's log has not been read yet: %w", ctx.Err())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unreadable
}

// Observe takes a record and returns the rule that matched it. It ignores a record that it has seen: the source may
// start again from the beginning at any time. A record that an earlier run reported only counts for thresholds. Of a
// record that a program wrote, or whose line's start is lost, only the number counts.
func (l *Log) Observe(r kmsg.KernelRecord) (rule *rules.Rule, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Sequence < l.seen {
		return nil, false
	}
	if from := max(l.seen, l.complete); from > 0 && r.Sequence > from {
		l.lose(r.Sequence-from, r.Up)
	}
	l.seen = r.Sequence + 1
	if r.Fragment || !r.FromKernel() && !l.programs {
		return nil, false
	}
	m, ok := l.tally.Observe(Record{Text: []byte(r.Text), Level: LevelOf(r.Level), At: r.Up, Up: r.Up, UpKnown: true})
	if !ok || r.Sequence < l.reported {
		return nil, false
	}
	key := tallyKey{m.Rule, m.Subject}
	switch {
	case m.Recovered:
		l.forget(key)
	case m.Raised:
		l.hold(key, m, r.Text, r.Up)
	}
	return m.Rule, true
}

// lose records that the kernel dropped records before they could be read.
func (l *Log) lose(records uint64, up time.Duration) {
	l.lost += records
	l.lostAt = up
	l.moved = true
}

func (l *Log) hold(key tallyKey, m Match, text string, up time.Duration) {
	h := l.held[key]
	switch {
	case h == nil:
		if len(l.held) >= maxHeld && !l.makeRoom(m.Severity) {
			return
		}
		h = &held{key: key, severity: m.Severity, first: up}
		l.held[key] = h
		h.place = l.order(h.severity).PushBack(h)
	case moreSevere(m.Severity, h.severity):
		l.order(h.severity).Remove(h.place)
		h.severity = m.Severity
		h.place = l.order(h.severity).PushBack(h)
	default:
		l.order(h.severity).MoveToBack(h.place)
	}
	h.last, h.facts = up, m.Facts
	l.moved = true
	if !m.Again {
		h.count++
		h.text = Printable([]byte(text))
	}
}

// order returns the held matches of a severity, the oldest first.
func (l *Log) order(s finding.Severity) *list.List {
	if l.orders[s] == nil {
		l.orders[s] = list.New()
	}
	return l.orders[s]
}

func (l *Log) forget(key tallyKey) {
	if h := l.held[key]; h != nil {
		l.order(h.severity).Remove(h.place)
		delete(l.held, key)
		l.moved = true
	}
}

// makeRoom drops the least important match, unless all held matches are more severe than the new one.
func (l *Log) makeRoom(coming finding.Severity) bool {
	for _, s := range []finding.Severity{finding.Info, finding.Warning, finding.Fatal} {
		if moreSevere(s, coming) {
			return false
		}
		if first := l.order(s).Front(); first != nil {
			l.forget(first.Value.(*held).key)
			return true
		}
	}
	return false
}

func moreSevere(a, b finding.Severity) bool {
	return finding.Compare(finding.Finding{Severity: a}, finding.Finding{Severity: b}) < 0
}

// Findings returns the current findings, now being the time since boot: one for each subject, the most severe. If leave
// returns true for a rule and the time of a record since boot, that record is left to other checks.
func (l *Log) Findings(now time.Duration, leave func(r *rules.Rule, at time.Duration) bool) []finding.Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	subjects := map[finding.Subject][]*held{}
	for key, h := range l.held {
		if expiry := key.rule.Expiry; expiry != rules.UntilBoot && now-h.last > expiry {
			l.forget(key)
			continue
		}
		if leave == nil || !leave(key.rule, h.last) {
			subjects[key.subject] = append(subjects[key.subject], h)
		}
	}
	var findings []finding.Finding
	for _, all := range subjects {
		findings = append(findings, findingOf(all))
	}
	if l.lost > 0 && now-l.lostAt <= lostExpiry {
		findings = append(findings, finding.Finding{
			Subject: finding.Subject{Kind: "source", Name: "kernel-log"}, Severity: finding.Warning,
			Reason:  "KernelRecordsLost",
			Message: "the kernel wrote faster than its log could be read: some records were never seen",
			Facts:   map[string]string{"lost": strconv.FormatUint(l.lost, 10)},
		})
	}
	slices.SortFunc(findings, finding.Compare)
	return findings
}

// findingOf makes one finding of all matches of one subject: the most severe, with the others listed. Among equals it
// is the one that began last: otherwise one that only a reboot ends would hide it.
func findingOf(all []*held) finding.Finding {
	slices.SortFunc(all, func(a, b *held) int {
		return cmp.Or(
			finding.Compare(finding.Finding{Severity: a.severity}, finding.Finding{Severity: b.severity}),
			cmp.Compare(b.first, a.first),
			cmp.Compare(a.key.rule.ID, b.key.rule.ID),
		)
	})
	first := all[0]
	f := finding.Finding{
		Subject: first.key.subject, Severity: first.severity, Reason: first.key.rule.Reason,
		Message: fmt.Sprintf("%s: %s", first.key.rule.Summary, first.text),
		Facts:   map[string]string{"rule": first.key.rule.ID, "count": strconv.Itoa(first.count), "line": first.text},
	}
	maps.Copy(f.Facts, first.facts)
	if first.key.rule.Advice != "" { // a user's rule may have none
		f.Facts["advice"] = first.key.rule.Advice
	}
	var others []string
	for _, h := range all[1:] {
		others = append(others, h.key.rule.Reason)
	}
	if others = slices.Compact(others); len(others) > 0 {
		f.Message += "; also " + strings.Join(others, ", ")
	}
	return f
}
