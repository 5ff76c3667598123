package kernellog

import (
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// samples returns texts that re matches, including one for each branch of each alternative.
func samples(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCharClass:
		return []string{string(sampleRune(re.Rune))}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return []string{"x"}
	case syntax.OpCapture, syntax.OpPlus:
		return samples(re.Sub[0])
	case syntax.OpRepeat:
		times := max(re.Min, 1)
		var all []string
		for _, s := range samples(re.Sub[0]) {
			all = append(all, strings.Repeat(s, times))
		}
		return all
	case syntax.OpQuest, syntax.OpStar:
		return append([]string{""}, samples(re.Sub[0])...)
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			all = append(all, samples(sub)...)
		}
		return all
	case syntax.OpConcat:
		return concatenated(re.Sub)
	}
	return []string{""} // anchors and boundaries
}

// concatenated varies one part at a time, with the first sample of each other part.
func concatenated(parts []*syntax.Regexp) []string {
	all := []string{""}
	for _, part := range parts {
		var next []string
		of := samples(part)
		for _, before := range all {
			next = append(next, before+of[0])
		}
		for _, s := range of[1:] {
			next = append(next, all[0]+s)
		}
		all = next
	}
	return all
}

// sampleRune prefers characters that are common in lines: a letter, else a digit, else the first of the class.
func sampleRune(class []rune) rune {
	for _, want := range []rune{'a', '1', ' '} {
		for i := 0; i+1 < len(class); i += 2 {
			if class[i] <= want && want <= class[i+1] {
				return want
			}
		}
	}
	return class[0]
}

// TestLiteralsLetPass: a line that a pattern matches must contain a literal of its rule, otherwise the pattern is never
// tried.
func TestLiteralsLetPass(t *testing.T) {
	for _, rule := range append(rules.Kernel(), rules.Daemons()...) {
		try := func(kind string, exprs, literals []string) {
			_, literals, err := newPatterns(exprs, literals)
			if err != nil {
				t.Fatal(rule.ID, err)
			}
			for _, expr := range exprs {
				re, err := syntax.Parse(expr, syntax.Perl)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range samples(re) {
					passes := false
					for _, l := range literals {
						passes = passes || strings.Contains("\n"+s, l[:min(len(l), maxLiteral)])
					}
					if !passes {
						t.Errorf("%s: no literal of the %s in %q", rule.ID, kind, s)
					}
				}
			}
		}
		try("rule", rule.Patterns, rule.Literals)
		if rule.Recovery != "" {
			try("recovery", []string{rule.Recovery}, nil)
		}
	}
}
