package kernellog

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"sync"
)

// pattern is a regular expression that is compiled when a line first needs it: on most nodes most of the table never
// is, and compiled it would take several megabytes.
type pattern struct {
	expr  string
	start []byte // what every match is the beginning of, and of the text; may be empty
	once  sync.Once
	re    *regexp.Regexp // set by once
}

// newPattern refuses an expression that cannot be compiled later: parsing is the part of that which can fail.
func newPattern(expr string) (*pattern, error) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, err
	}
	return &pattern{expr: expr, start: startOf(re)}, nil
}

// startOf returns what a text begins with that re, which is anchored to its beginning, matches.
func startOf(re *syntax.Regexp) []byte {
	if re.Op == syntax.OpConcat && re.Sub[0].Op == syntax.OpBeginText && re.Sub[1].Op == syntax.OpLiteral &&
		re.Sub[1].Flags&syntax.FoldCase == 0 {
		return []byte(string(re.Sub[1].Rune))
	}
	return nil
}

// match reports whether a text matches. Most do not even begin like the pattern.
func (p *pattern) match(text []byte) bool {
	return bytes.HasPrefix(text, p.start) && p.Regexp().Match(text)
}

// WhenNeeded is a pattern of the program itself: one that cannot be compiled is found by the tests. Only a replay
// of a log needs most of them, but each child process of the agent would compile them.
func WhenNeeded(expr string) *pattern { return &pattern{expr: expr} }

// Regexp compiles the pattern when it is needed first. It must be valid: see Rule.Problem.
func (p *pattern) Regexp() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.expr) })
	return p.re
}
