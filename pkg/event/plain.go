package event

import (
	"strings"
	"unicode"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Plain replaces characters of an external text that control a terminal or a line, or that are invisible, such as those
// that change the text direction.
func Plain(text string) string { return visible(strings.ToValidUTF8(text, "?"), '?') }

// Brief returns an external text as one line of at most limit bytes, cut between two characters. Characters that Plain
// replaces become spaces.
func Brief(text string, limit int) string {
	return finding.Clip(strings.TrimSpace(visible(strings.ToValidUTF8(text, "�"), ' ')), limit)
}

func visible(text string, instead rune) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return instead
		}
		return r
	}, text)
}
