package npd

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// pattern is a rule's regular expression with the semantics of node-problem-detector: it must match to the very end of
// the buffered lines, joined by newlines. For that it appends `\z` to the text, which binds to the last alternative
// only: the others match anywhere in the buffer.
//
// Necessary conditions of a match are derived from the expression once, so that most lines cost a search for a few
// literals.
type pattern struct {
	re *regexp.Regexp
	// literals: every match contains one of these texts, within one line; nil if none are known.
	literals []string
	// lastLine means that every match is within the newest line: it reaches the end and contains no newline.
	lastLine bool
}

func newPattern(expr string) (*pattern, error) {
	if _, err := regexp.Compile(expr); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(expr + `\z`)
	if err != nil {
		return nil, err
	}
	p := &pattern{re: re}
	if tree, err := syntax.Parse(expr+`\z`, syntax.Perl); err == nil {
		p.literals = kernellog.LiteralsOf(tree)
		p.lastLine = endsAtEnd(tree) && !spansLines(tree)
	}
	return p, nil
}

// mayMatch reports whether a line meets the necessary conditions of a match.
func (p *pattern) mayMatch(line string) bool {
	if p.literals == nil {
		return true
	}
	return slices.ContainsFunc(p.literals, func(l string) bool { return strings.Contains(line, l) })
}

// endsAtEnd reports whether every match of re reaches the end of the text.
func endsAtEnd(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpEndText:
		return true
	case syntax.OpConcat:
		return endsAtEnd(re.Sub[len(re.Sub)-1])
	case syntax.OpCapture:
		return endsAtEnd(re.Sub[0])
	}
	return false
}

// spansLines reports whether a match of re may contain a newline.
func spansLines(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpAnyChar:
		return true
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, '\n')
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i] <= '\n' && '\n' <= re.Rune[i+1] {
				return true
			}
		}
	}
	return slices.ContainsFunc(re.Sub, spansLines)
}
