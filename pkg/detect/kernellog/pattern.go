package kernellog

import (
	"regexp"
	"regexp/syntax"
	"sync"
)

// pattern is a regular expression that is compiled when a line first needs it: on most nodes most of the table never
// is, and compiled it would take several megabytes.
type pattern struct {
	expr string
	once sync.Once
	re   *regexp.Regexp // set by once
}

// newPattern refuses an expression that cannot be compiled later: parsing is the part of that which can fail.
func newPattern(expr string) (*pattern, error) {
	if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
		return nil, err
	}
	return &pattern{expr: expr}, nil
}

// WhenNeeded is a pattern of the program itself: one that cannot be compiled is found by the tests. Only a replay
// of a log needs most of them, but each child process of the agent would compile them.
func WhenNeeded(expr string) *pattern { return &pattern{expr: expr} }

// Regexp compiles the pattern when it is needed first. It must be valid: see Rule.Problem.
func (p *pattern) Regexp() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.expr) })
	return p.re
}
