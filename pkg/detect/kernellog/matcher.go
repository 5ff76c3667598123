package kernellog

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// maxLiteral is the length of a literal that the pre-filter uses: enough to filter, with a small table.
const maxLiteral = 20

// MaxText is how much of a record is matched: the kernel's records are shorter (LOG_LINE_MAX).
const MaxText = 8 << 10

// ofOthers matches lines of the kernel that start with text of another origin: some start with the name of a program,
// and input devices choose their names. Such a line is no evidence.
var ofOthers = regexp.MustCompile(`^(?:` + rules.Command +
	`(?: \(\d+\)(?:: drop_caches: | used greatest stack depth: )|: potentially unexpected fatal signal |` +
	`: sending ioctl | uses obsolete \(PF_INET,SOCK_PACKET\)|\[\d+\] vsyscall attempted )` +
	`|input: .* as /devices/|process '.*' started with executable stack)`)

// logTarget matches lines of the packet filter's LOG target: before "IN=" they have up to 127 characters of the author
// of the filter rule (net/netfilter/nf_log_syslog.c).
var logTarget = regexp.MustCompile(`IN=[^ ]* OUT=[^ ]* `)

// notTheKernels reports whether a line of the kernel starts with text of another origin.
func notTheKernels(text []byte) bool {
	return bytes.Contains(text, []byte("IN=")) && logTarget.Match(text) || ofOthers.Match(text)
}

// programTag is the start of lines that programs write to the kernel's log: "systemd[1]: ". It is used for formats that
// do not contain the writer of a line.
var programTag = regexp.MustCompile(`^[\w.@()-]{1,64}\[\d+\]: `)

// Level is the level of a kernel line, as far as the rules distinguish it.
type Level uint8

// The levels. An unknown level counts as an error.
const (
	LevelError   Level = iota // or worse
	LevelWarning              // includes the level of drivers that log without one
	LevelInfo                 // notice, info, debug
)

// LevelOf returns the level for a level number of syslog(2).
func LevelOf(number int) Level {
	switch {
	case number <= 3:
		return LevelError
	case number == 4:
		return LevelWarning
	}
	return LevelInfo
}

// Matcher compares texts with the table. It is immutable, and safe for concurrent use.
type Matcher struct {
	Rules []compiled // recoveries are entries after the rules
	auto  *automaton
	// stand for rules.EscalationWords, rules.FaultWords and rules.Remarks in the set of found words
	dire, fault, remark int
}

type compiled struct {
	Rule     *rules.Rule
	Recovery bool
	Patterns []*pattern
	exclude  *pattern
	words    int // stands for the rule's Words in the set of found words; 0 without them
	unless   int // the same for Unless
}

// Hit is the match of one text.
type Hit struct {
	Rule      *rules.Rule
	Recovered bool // the fault of this rule and subject has ended
	Dire      bool // the rule is one with Errors, and the line has a word of rules.EscalationWords and none of rules.Remarks
	Pattern   int  // index of the rule's pattern
	Subject   finding.Subject
	Facts     map[string]string // texts of the named groups; nil if there are none
}

// NewMatcher compiles a table of rules. It returns an error if a rule is malformed, or if two rules have the same ID.
func NewMatcher(table []rules.Rule) (*Matcher, error) {
	m := &Matcher{}
	literals := map[string]set{}
	own := func(texts []string, owner int) {
		for _, text := range texts {
			text = text[:min(len(text), maxLiteral)]
			owners := literals[text]
			if owner < setSize { // otherwise the table is rejected below
				owners.add(owner)
			}
			literals[text] = owners
		}
	}
	ids := map[string]bool{}
	for i := range table {
		rule := &table[i]
		if ids[rule.ID] {
			return nil, fmt.Errorf("rule %s: there are two of them", rule.ID)
		}
		ids[rule.ID] = true
		c, literals, err := compile(rule)
		if err != nil {
			return nil, err
		}
		m.Rules = append(m.Rules, c)
		own(literals, len(m.Rules)-1)
	}
	for i := range table {
		if table[i].Recovery == "" {
			continue
		}
		patterns, literals, err := newPatterns([]string{table[i].Recovery}, nil)
		if err != nil {
			return nil, fmt.Errorf("rule %s: recovery: %w", table[i].ID, err)
		}
		m.Rules = append(m.Rules, compiled{Rule: &table[i], Recovery: true, Patterns: patterns})
		own(literals, len(m.Rules)-1)
	}
	used := len(m.Rules)
	for i := range table {
		if len(table[i].Words) > 0 {
			m.Rules[i].words = used
			own(table[i].Words, used)
			used++
		}
		if len(table[i].Unless) > 0 {
			m.Rules[i].unless = used
			own(table[i].Unless, used)
			used++
		}
	}
	m.dire, m.fault, m.remark = used, used+1, used+2
	if slices.ContainsFunc(table, func(r rules.Rule) bool { return r.Errors }) { // otherwise they would only cost time
		own(rules.EscalationWords(), m.dire)
		own(rules.FaultWords(), m.fault)
		own(rules.Remarks(), m.remark)
	}
	if used += 3; used > setSize {
		return nil, fmt.Errorf("%d rules, recoveries and lists of words: at most %d are possible", used, setSize)
	}
	var err error
	m.auto, err = newAutomaton(literals)
	return m, err
}

// compile returns a rule ready for use, and its literals.
func compile(rule *rules.Rule) (c compiled, literals []string, err error) {
	if err := rule.Problem(); err != nil {
		return c, nil, err
	}
	c.Rule = rule
	if c.Patterns, literals, err = newPatterns(rule.Patterns, rule.Literals); err != nil {
		return c, nil, fmt.Errorf("rule %s: %w", rule.ID, err)
	}
	if rule.Exclude != "" {
		if c.exclude, _, err = newPattern(rule.Exclude); err != nil {
			return c, nil, fmt.Errorf("rule %s: exclude: %w", rule.ID, err)
		}
	}
	return c, literals, nil
}

// Match returns the match of a text of the kernel, without priority, time and caller. A line without a match costs no
// allocation.
func (m *Matcher) Match(text []byte) (Hit, bool) { return m.MatchOf(rules.TheKernel, text) }

// MatchOf returns the match of a text of a daemon.
func (m *Matcher) MatchOf(speaker rules.Emitter, text []byte) (Hit, bool) {
	return m.match(speaker, LevelError, text)
}

// match is MatchOf for a text that may be known to be below the level of errors.
func (m *Matcher) match(speaker rules.Emitter, level Level, text []byte) (Hit, bool) {
	if len(text) > MaxText {
		text = text[:MaxText]
	}
	candidates := m.auto.find(text)
	if candidates.empty() {
		return Hit{}, false
	}
	quiet := level == LevelInfo ||
		level == LevelWarning && (!candidates.has(m.fault) || candidates.has(m.remark))
	for i := range candidates.all() {
		if i >= len(m.Rules) {
			break
		}
		c := &m.Rules[i]
		if c.words > 0 && !candidates.has(c.words) || c.unless > 0 && candidates.has(c.unless) ||
			quiet && c.Rule.Errors && !c.Recovery || !c.Rule.EmittedBy(speaker) {
			continue
		}
		at := slices.IndexFunc(c.Patterns, func(p *pattern) bool { return p.match(text) })
		if at < 0 || c.exclude != nil && c.exclude.match(text) {
			continue
		}
		if speaker == rules.TheKernel && (notTheKernels(text) || !c.Rule.Named && programTag.Match(text)) {
			return Hit{}, false
		}
		re := c.Patterns[at].Regexp()
		hit := c.hit(re, text, re.FindSubmatchIndex(text))
		hit.Pattern = at
		hit.Dire = c.Rule.Errors && candidates.has(m.dire) && !candidates.has(m.remark)
		return hit, true
	}
	return Hit{}, false
}

// hit reads the groups of a match. It keeps no reference to text.
func (c *compiled) hit(re *regexp.Regexp, text []byte, groups []int) Hit {
	h := Hit{Rule: c.Rule, Recovered: c.Recovery}
	var name string
	for i, group := range re.SubexpNames() {
		if group == "" || groups[2*i] < 0 {
			continue
		}
		value := strings.TrimSpace(Printable(text[groups[2*i]:groups[2*i+1]]))
		switch {
		case value == "":
		case strings.HasPrefix(group, "subject"):
			name = value
		default:
			if h.Facts == nil {
				h.Facts = map[string]string{}
			}
			h.Facts[group] = value
		}
	}
	h.Subject = subjectOf(c.Rule, name, h.Facts)
	return h
}

// subjectOf names the subject of a line: the pod that a cgroup belongs to, the name in the pattern's group, or the
// node.
func subjectOf(r *rules.Rule, name string, facts map[string]string) finding.Subject {
	if cgroup := facts["cgroup"]; cgroup != "" {
		if uid, container, ok := podOfCgroup(cgroup); ok {
			if container != "" {
				facts["container"] = container
			}
			return finding.Subject{Kind: rules.PodKind, Name: uid, UID: uid}
		}
	}
	if name == "" && (r.Kind == "process" || r.Kind == "cgroup") {
		name = facts[r.Kind]
	}
	if name == "" || r.Kind == rules.NodeKind {
		return finding.Subject{Kind: rules.NodeKind}
	}
	return finding.Subject{Kind: r.Kind, Name: name}
}
