package event

import (
	"strings"
	"unicode"
)

// Plain returns a text from outside without characters that control a terminal or a line, or that nobody sees: those
// that turn the direction of what follows, for one.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
