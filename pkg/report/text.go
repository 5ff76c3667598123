package report

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const ellipsis = "…"

// Text returns s as one line of valid UTF-8 in printable runes, at most limit bytes. Raw output of logs and plugins
// must not reach a terminal.
func Text(s string, limit int) string {
	cut := len(s) > limit*utf8.UTFMax
	if cut {
		// Bounds the work for a long s. A rune cut in two here becomes one replacement character.
		s = s[:limit*utf8.UTFMax]
	}
	s = strings.TrimSpace(strings.Map(printable, strings.ToValidUTF8(s, "\uFFFD")))
	if len(s) <= limit && !cut {
		return s
	}
	return finding.Clip(s, limit-len(ellipsis)) + ellipsis
}

// TextWith returns s followed by suffix, in the form of Text; it shortens s, never suffix.
func TextWith(s, suffix string, limit int) string {
	return Text(s, limit-len(suffix)) + suffix
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// Reason returns s as the reason of a condition or an event: ASCII letters, digits and underscores, a
// letter first, at most limit bytes.
func Reason(s string, limit int) string {
	s = finding.Clip(s, limit*utf8.UTFMax)
	s = strings.Map(func(r rune) rune {
		if r == '_' || r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return -1
	}, s)
	s = strings.TrimLeftFunc(s, func(r rune) bool { return !unicode.IsLetter(r) })
	if s == "" {
		s = "Unspecified"
	}
	return finding.Clip(strings.ToUpper(s[:1])+s[1:], limit)
}
