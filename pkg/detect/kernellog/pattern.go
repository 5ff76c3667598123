package kernellog

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"
)

// pattern is a regular expression, compiled on first use: on most nodes most of the table is never used, and compiled
// it would take several megabytes.
type pattern struct {
	expr  string
	start []byte // prefix of every match, and of the text; may be empty
	once  sync.Once
	re    *regexp.Regexp // set by once
}

// newPattern returns an error if the expression cannot be compiled later: only parsing can fail.
func newPattern(expr string) (*pattern, *syntax.Regexp, error) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, nil, err
	}
	return &pattern{expr: expr, start: startOf(re)}, re, nil
}

// newPatterns also returns literals of which every match contains one: the given ones, or, if there are none, those of
// the expressions.
func newPatterns(exprs, literals []string) (patterns []*pattern, all []string, err error) {
	for _, expr := range exprs {
		p, re, err := newPattern(expr)
		if err != nil {
			return nil, nil, err
		}
		patterns = append(patterns, p)
		if len(literals) > 0 {
			continue
		}
		own := LiteralsOf(re)
		if own == nil {
			return nil, nil, fmt.Errorf("%q: no text of %d letters or more is in every line that it matches", expr,
				minLiteral)
		}
		all = append(all, own...)
	}
	return patterns, append(all, literals...), nil
}

// startOf returns the literal prefix of every text that matches re, which is anchored to the start.
func startOf(re *syntax.Regexp) []byte {
	if re.Op == syntax.OpConcat && re.Sub[0].Op == syntax.OpBeginText && re.Sub[1].Op == syntax.OpLiteral &&
		re.Sub[1].Flags&syntax.FoldCase == 0 {
		return []byte(string(re.Sub[1].Rune))
	}
	return nil
}

// match reports whether a text matches. Most texts do not even have the prefix.
func (p *pattern) match(text []byte) bool {
	return bytes.HasPrefix(text, p.start) && p.Regexp().Match(text)
}

// WhenNeeded is a pattern of the program itself: the tests find an invalid one. Only a replay of a log needs most of
// them, but each child process of the agent would compile them.
func WhenNeeded(expr string) *pattern { return &pattern{expr: expr} }

// Regexp compiles the pattern on first use. It must be valid: see Rule.Problem.
func (p *pattern) Regexp() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.expr) })
	return p.re
}
