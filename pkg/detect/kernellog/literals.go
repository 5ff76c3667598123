package kernellog

import (
	"regexp/syntax"
	"slices"
	"strings"
)

const (
	minLiteral  = 3  // a shorter one rarely filters
	maxLiterals = 16 // more cost more than they save
)

// LiteralsOf returns texts of which every match of re contains one, within one line; nil if none are known.
func LiteralsOf(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return nil
		}
		longest := slices.MaxFunc(strings.Split(string(re.Rune), "\n"), func(a, b string) int {
			return len(a) - len(b)
		})
		if len(longest) < minLiteral {
			return nil
		}
		return []string{longest}
	case syntax.OpCapture, syntax.OpPlus:
		return LiteralsOf(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return LiteralsOf(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if r := LiteralsOf(sub); r != nil && (best == nil || shortest(r) >= shortest(best)) {
				best = r
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			r := LiteralsOf(sub)
			if r == nil || len(all)+len(r) > maxLiterals {
				return nil
			}
			all = append(all, r...)
		}
		return all
	}
	return nil
}

func shortest(texts []string) int {
	return len(slices.MinFunc(texts, func(a, b string) int { return len(a) - len(b) }))
}
