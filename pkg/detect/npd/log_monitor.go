package npd

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// line is one entry of a log.
type line struct {
	text string
	at   time.Duration // since boot, when it was written
	// context marks a line that was reported before: it is only context for the lines that follow.
	context bool
}

// logMonitor is one system log monitor: a buffer, its rules and their held problems.
type logMonitor struct {
	file     File
	id       string // of its check for temporary problems, and the prefix of the others
	settings Settings
	times    times
	rules    []logRule
	up       func() time.Duration // since boot
	wake     func(check string)
	happened func(reason string, n int)
	save     func(boot string, always bool) // saves the held problems if they have changed

	mu         sync.Mutex // guards all below
	buffer     *Buffer
	held       map[string]held // permanent problems by condition
	moments    []moment
	serial     int           // of the newest moment
	missed     int           // moments dropped because there were too many
	unreadable error         // why the log is not read; nil when all existing lines were read
	tried      chan struct{} // closed when it is known whether the log can be read
	moved      bool          // the held problems have changed since the last save
}

// logRule is a rule ready for use.
type logRule struct {
	LogRule
	pattern  int // in the buffer
	recovery int // in the buffer; -1 for none
	expiry   time.Duration
}

// held is a permanent problem.
type held struct {
	Reason  string        `json:"reason"`
	Message string        `json:"message"`
	Since   time.Duration `json:"since"` // since boot, of its first line
	Last    time.Duration `json:"last"`  // and of its last line
	Count   int           `json:"count"`
	Expiry  time.Duration `json:"expiry"`
}

// moment is a temporary problem.
type moment struct {
	serial          int
	reason, message string
	at              time.Duration // since boot, when it was written
	read            time.Duration // and when it was read
}

const (
	// maxMoments bounds how many temporary problems of one file are held at a time.
	maxMoments = 64
	// momentHold is how long a moment is shown.
	momentHold = 10 * time.Minute
)

func newLogMonitor(f File, id string, s Settings) (*logMonitor, error) {
	times, err := f.Log.times()
	if err != nil {
		return nil, err
	}
	m := &logMonitor{
		file: f, id: id, settings: s, times: times, held: map[string]held{}, unreadable: errNotRead,
		tried: make(chan struct{}),
		up:    func() time.Duration { return 0 },
		wake:  func(string) {}, happened: func(string, int) {}, save: func(string, bool) {},
	}
	var patterns []string
	for _, r := range f.Log.Rules {
		rule := logRule{LogRule: r, pattern: len(patterns), recovery: -1}
		patterns = append(patterns, r.Pattern)
		if r.RecoveryPattern != "" {
			rule.recovery = len(patterns)
			patterns = append(patterns, r.RecoveryPattern)
		}
		if rule.expiry, err = duration(r.Expiry, s.Expiry, nil); err != nil {
			return nil, err
		}
		m.rules = append(m.rules, rule)
	}
	m.buffer, err = NewBuffer(f.Log.BufferSize, patterns...)
	return m, err
}

// skips reports whether a line is ignored, whatever the rules: it is not even buffered.
func (m *logMonitor) skips(text string) bool {
	return slices.ContainsFunc(m.file.Log.SkipList, func(s string) bool { return strings.Contains(text, s) })
}

// observe takes a line.
func (m *logMonitor) observe(l line) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buffer.Push(l.text)
	if l.context {
		return
	}
	for i := range m.rules {
		r := &m.rules[i]
		if text, ok := m.buffer.Match(r.pattern); ok {
			m.matched(r, text, l.at)
		}
		if r.recovery >= 0 {
			if _, ok := m.buffer.Match(r.recovery); ok {
				m.recovered(r)
			}
		}
	}
}

// matched records the problem of a matching rule.
func (m *logMonitor) matched(r *logRule, text string, at time.Duration) {
	message := message(text, r.PatternGeneratedMessageSuffix)
	if r.Type == types.Temp {
		m.happen(r.Reason, message, at)
		return
	}
	if !hasCondition(m.file.Log.DefaultConditions, r.Condition) {
		return // no condition to report it
	}
	h, known := m.held[r.Condition]
	if !known || h.Reason != r.Reason { // the newest reason wins, as in node-problem-detector
		h = held{Reason: r.Reason, Message: message, Since: at}
	}
	h.Last, h.Expiry = at, r.expiry
	h.Count++
	if m.held[r.Condition] = h; h.Count == 1 {
		m.moved = true
		m.wake(conditionID(m.id, r.Condition))
	}
}

// message formats the match (systemlogmonitor: generateMessage), on one line.
func message(text, suffix string) string {
	if suffix != "" {
		text += "; " + suffix
	}
	return kernellog.Printable([]byte(strings.ReplaceAll(text, "\n", " ")))
}

func (m *logMonitor) happen(reason, message string, at time.Duration) {
	if len(m.moments) >= maxMoments {
		m.missed++
		m.happened(reason, 1)
		return
	}
	m.serial++
	m.moments = append(m.moments, moment{m.serial, reason, message, at, m.up()})
	m.moved = true
	m.wake(m.id)
}

func (m *logMonitor) recovered(r *logRule) {
	if h, ok := m.held[r.Condition]; ok && h.Reason == r.Reason {
		delete(m.held, r.Condition)
		m.moved = true
		m.wake(conditionID(m.id, r.Condition))
	}
}

// setReadable records whether the log is read: nil when all existing lines were read.
func (m *logMonitor) setReadable(err error) {
	m.mu.Lock()
	changed := (m.unreadable == nil) != (err == nil)
	m.unreadable = err
	select {
	case <-m.tried:
	default:
		close(m.tried)
	}
	m.mu.Unlock()
	if !changed {
		return
	}
	for _, id := range m.checkIDs() {
		m.wake(id)
	}
}

// await waits until it is known whether the log can be read: otherwise the first run of a check would have an error.
func (m *logMonitor) await(ctx context.Context) {
	select {
	case <-m.tried:
	case <-ctx.Done():
	}
}

// checkIDs returns the IDs of all checks that the monitor may have.
func (m *logMonitor) checkIDs() []string {
	ids := []string{m.id}
	for _, c := range m.file.Log.DefaultConditions {
		ids = append(ids, conditionID(m.id, c.Type))
	}
	return ids
}
