package kernellog

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// CustomRule is a rule of a user: the fields of Rule that a user has a reason to set.
type CustomRule struct {
	ID       string           `yaml:"id"`
	Reason   string           `yaml:"reason"`
	Severity finding.Severity `yaml:"severity"`
	Summary  string           `yaml:"summary"` // meaning of a line, for users
	Kind     string           `yaml:"kind,omitempty"`

	// RE2, from the start of the kernel's text; the group "subject" names the subject
	Patterns []string `yaml:"patterns"`
	Literals []string `yaml:"literals,omitempty"` // one of them is in every line; derived from the patterns unless set
	Exclude  string   `yaml:"exclude,omitempty"`  // RE2, anywhere: the line is harmless although a pattern matches

	Raise     rules.Rate    `yaml:"raise,omitempty"`     // the rate that raises a finding; once unless set
	Expiry    time.Duration `yaml:"expiry,omitempty"`    // how long a line keeps the finding; an hour unless set
	UntilBoot bool          `yaml:"untilBoot,omitempty"` // as long as the kernel runs instead
	Recovery  string        `yaml:"recovery,omitempty"`  // RE2, like patterns: the fault has ended
	// ID of the check that reads the state behind the line and that the line wakes
	Confirms string `yaml:"confirmedBy,omitempty"`

	Matches []string `yaml:"matches,omitempty"` // lines that the rule must match: tried when the configuration is read
	Ignores []string `yaml:"ignores,omitempty"` // lines that the rule must not match
}

const (
	ownDomain rules.Domain = "own"
	ownExpiry              = time.Hour
	// maxCustomRules bounds the rules of a user: the automaton has room for them beside the built-in ones.
	maxCustomRules = 64
)

// Rule returns the rule.
func (o CustomRule) Rule() rules.Rule {
	r := rules.Rule{
		ID: o.ID, Reason: o.Reason, Severity: o.Severity, Summary: o.Summary, Domain: ownDomain,
		Kind:     cmp.Or(o.Kind, rules.NodeKind),
		Patterns: o.Patterns, Literals: o.Literals, Exclude: o.Exclude, Raise: o.Raise,
		Expiry: cmp.Or(o.Expiry, ownExpiry), Recovery: o.Recovery, ConfirmedBy: o.Confirms,
	}
	if o.UntilBoot {
		r.Expiry = rules.UntilBoot
	}
	return r
}

// Validate returns the invalid fields of o.
func (o CustomRule) Validate() error {
	wrong := setting.Mistakes{}
	for key, expr := range o.expressions() {
		_, err := regexp.Compile(expr)
		wrong.Add(key, err)
		wrong.Check(key, key == "exclude" || strings.HasPrefix(expr, "^"),
			"%q must begin with ^: only what the kernel's text begins with is its own word", expr)
	}
	switch {
	case !rules.IDForm.MatchString(o.ID):
		wrong.Check("id", false, "%q must be lower case words with hyphens between them", o.ID)
	case !rules.ReasonForm.MatchString(o.Reason):
		wrong.Check("reason", false, "%q must be one word in CamelCase", o.Reason)
	case !o.Severity.Valid():
		wrong.Check("severity", false, "%q: a severity is fatal, warning or info", o.Severity)
	case o.Summary == "":
		wrong.Check("summary", false, "must say what a line of this rule means")
	case o.Raise.Count > 1 && o.Raise.Within == 0:
		wrong.Check("raise", false, "within is missing: how often is counted within a time")
	}
	if len(wrong) == 0 {
		o.checkLines(wrong)
	}
	return wrong.OrNil()
}

// expressions returns all regular expressions, by key.
func (o CustomRule) expressions() map[string]string {
	all := map[string]string{}
	for i, p := range o.Patterns {
		all[fmt.Sprintf("patterns.%d", i)] = p
	}
	if o.Recovery != "" {
		all["recovery"] = o.Recovery
	}
	if o.Exclude != "" {
		all["exclude"] = o.Exclude
	}
	return all
}

// checkLines tests the rule with its example lines.
func (o CustomRule) checkLines(wrong setting.Mistakes) {
	_, _, err := newPatterns(o.Patterns, o.Literals)
	_, _, recoveryErr := newPatterns([]string{o.Recovery}, nil)
	switch {
	case len(o.Patterns) == 0:
		wrong.Check("id", false, "patterns are missing")
	case err != nil:
		wrong.Check("patterns", false, "no text of 3 letters or more is in every line that they match: name some as literals")
	case o.Recovery != "" && recoveryErr != nil:
		wrong.Check("recovery", false, "no text of 3 letters or more is in every line that it matches")
	}
	if len(wrong) > 0 {
		return
	}
	m, err := NewMatcher([]rules.Rule{o.Rule()})
	if err != nil {
		wrong.Add("id", err)
		return
	}
	for i, line := range o.Matches {
		hit, ok := m.Match([]byte(line))
		wrong.Check(fmt.Sprintf("matches.%d", i), ok && !hit.Recovered, "the rule does not match %q", line)
	}
	for i, line := range o.Ignores {
		_, ok := m.Match([]byte(line))
		wrong.Check(fmt.Sprintf("ignores.%d", i), !ok, "the rule matches %q", line)
	}
}

// CustomRules returns the rules of a user for the table, after the built-in ones: the first match wins. The keys of
// its Mistakes begin with the position of the invalid rule.
func CustomRules(own []CustomRule, table []rules.Rule) ([]rules.Rule, error) {
	wrong := setting.Mistakes{}
	wrong.Check(fmt.Sprint(maxCustomRules), len(own) <= maxCustomRules, "at most %d rules are possible", maxCustomRules)
	var added []rules.Rule
	for i, o := range own {
		named := func(r rules.Rule) bool { return r.ID == o.ID }
		wrong.Check(fmt.Sprintf("%d.id", i), !slices.ContainsFunc(table, named),
			"the agent has a rule of this name: checks.kernel-log.rules.%s adjusts it", o.ID)
		wrong.Check(fmt.Sprintf("%d.id", i), !slices.ContainsFunc(added, named), "there are two rules of this name")
		added = append(added, o.Rule())
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	m, err := NewMatcher(slices.Concat(table, added))
	if err != nil {
		return nil, setting.Mistakes{"0.id": err.Error()}
	}
	for i, o := range own {
		for n, line := range o.Matches {
			hit, ok := m.Match([]byte(line))
			wrong.Check(fmt.Sprintf("%d.matches.%d", i, n), !ok || hit.Rule.ID == o.ID,
				"the rule %s has this line already", hit.Rule.ID)
		}
	}
	return added, wrong.OrNil()
}
