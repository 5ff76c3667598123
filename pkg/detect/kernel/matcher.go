package kernel

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// maxLiteral is how much of a literal the pre-filter looks for: enough to sort out, and a table that stays small.
const maxLiteral = 20

// maxText is how much of a record is looked at: the kernel's own records are shorter (LOG_LINE_MAX).
const maxText = 8 << 10

// notTheKernels recognises the kernel's lines that begin with words which somebody else chose: the packet filter's LOG
// target puts up to 127 characters of whoever wrote the filter rule before "IN=" (net/netfilter/nf_log_syslog.c); some lines
// begin with the name of a program, and the kernel names input devices as they call themselves. What such a line seems to
// say is nobody's word.
var notTheKernels = regexp.MustCompile(`IN=[^ ]* OUT=[^ ]* ` +
	`|^` + command + `(?: \(\d+\)(?:: drop_caches: | used greatest stack depth: )|: potentially unexpected fatal signal |` +
	`: sending ioctl | uses obsolete \(PF_INET,SOCK_PACKET\)|\[\d+\] vsyscall attempted )` +
	`|^input: .* as /devices/|^process '.*' started with executable stack`)

// programTag is how programs begin the lines that they write to the kernel's log: "systemd[1]: ". Where a format does not
// tell who wrote a line, this does.
var programTag = regexp.MustCompile(`^[\w.@()-]{1,64}\[\d+\]: `)

// Matcher compares texts with the table. It does not change, and is safe for use by many goroutines.
type Matcher struct {
	rules []compiled // recoveries are entries of their own, after the rules
	auto  *automaton
}

type compiled struct {
	rule     *Rule
	recovery bool
	patterns []*pattern
	exclude  *pattern
}

// Hit is what a text says.
type Hit struct {
	Rule      *Rule
	Recovered bool // the text says that the fault of this rule and subject is gone
	Pattern   int  // which of the rule's it is
	Subject   finding.Subject
	Facts     map[string]string // what the named groups matched; nil when nothing
}

// NewMatcher makes a table of rules. It refuses a table with a malformed rule, or with two rules of the same ID.
func NewMatcher(rules []Rule) (*Matcher, error) {
	m := &Matcher{}
	literals := map[string]set{}
	own := func(texts []string) {
		for _, text := range texts {
			text = text[:min(len(text), maxLiteral)]
			owners := literals[text]
			owners.add(len(m.rules) - 1)
			literals[text] = owners
		}
	}
	ids := map[string]bool{}
	for i := range rules {
		rule := &rules[i]
		if ids[rule.ID] {
			return nil, fmt.Errorf("rule %s: there are two of them", rule.ID)
		}
		ids[rule.ID] = true
		c, err := compile(rule)
		if err != nil {
			return nil, err
		}
		m.rules = append(m.rules, c)
		own(rule.Literals)
	}
	for i := range rules {
		if rules[i].Recovery.Pattern == "" {
			continue
		}
		p, err := newPattern(rules[i].Recovery.Pattern)
		if err != nil {
			return nil, fmt.Errorf("rule %s: recovery: %w", rules[i].ID, err)
		}
		m.rules = append(m.rules, compiled{rule: &rules[i], recovery: true, patterns: []*pattern{p}})
		own(rules[i].Recovery.Literals)
	}
	if len(m.rules) > setSize {
		return nil, fmt.Errorf("%d rules and recoveries: at most %d are possible", len(m.rules), setSize)
	}
	var err error
	m.auto, err = newAutomaton(literals)
	return m, err
}

func compile(rule *Rule) (compiled, error) {
	c := compiled{rule: rule}
	if err := rule.Problem(); err != nil {
		return c, err
	}
	for _, expr := range rule.Patterns {
		p, err := newPattern(expr)
		if err != nil {
			return c, fmt.Errorf("rule %s: %w", rule.ID, err)
		}
		c.patterns = append(c.patterns, p)
	}
	if rule.Exclude != "" {
		p, err := newPattern(rule.Exclude)
		if err != nil {
			return c, fmt.Errorf("rule %s: exclude: %w", rule.ID, err)
		}
		c.exclude = p
	}
	return c, nil
}

// Match returns what the kernel's text says. The text is the record's own, without priority, time and caller. A line that
// says nothing costs no allocation.
func (m *Matcher) Match(text []byte) (Hit, bool) { return m.MatchOf(theKernel, text) }

// MatchOf returns what a text of a daemon says.
func (m *Matcher) MatchOf(speaker Speaker, text []byte) (Hit, bool) {
	if len(text) > maxText {
		text = text[:maxText]
	}
	candidates := m.auto.find(text)
	if candidates.empty() {
		return Hit{}, false
	}
	for i := range m.rules {
		if !candidates.has(i) {
			continue
		}
		c := &m.rules[i]
		if !c.rule.spokenBy(speaker) {
			continue
		}
		if c.exclude != nil && c.exclude.regexp().Match(text) { // before the patterns: a line that is let pass costs no copy
			continue
		}
		for i, p := range c.patterns {
			re := p.regexp()
			groups := re.FindSubmatchIndex(text)
			if groups == nil {
				continue
			}
			if speaker == theKernel && (notTheKernels.Match(text) || !c.rule.Named && programTag.Match(text)) {
				return Hit{}, false
			}
			hit := c.hit(re, text, groups)
			hit.Pattern = i
			return hit, true
		}
	}
	return Hit{}, false
}

// hit reads the groups of a match. Nothing of it refers to text.
func (c *compiled) hit(re *regexp.Regexp, text []byte, groups []int) Hit {
	h := Hit{Rule: c.rule, Recovered: c.recovery}
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
	h.Subject = subjectOf(c.rule, name, h.Facts)
	return h
}

// subjectOf names what a line speaks of: the pod that a cgroup belongs to, what the pattern named, or the node.
func subjectOf(r *Rule, name string, facts map[string]string) finding.Subject {
	if cgroup := facts["cgroup"]; cgroup != "" {
		if uid, container, ok := podOfCgroup(cgroup); ok {
			if container != "" {
				facts["container"] = container
			}
			return finding.Subject{Kind: PodKind, Name: uid, UID: uid}
		}
	}
	if name == "" && (r.Kind == "process" || r.Kind == "cgroup") {
		name = facts[r.Kind]
	}
	if name == "" || r.Kind == NodeKind {
		return finding.Subject{Kind: NodeKind}
	}
	return finding.Subject{Kind: r.Kind, Name: name}
}
