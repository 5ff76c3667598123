package hosterr

import (
	"strings"
	"unicode"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Sanitize shortens external text for display: valid UTF-8, one line, no control characters, at most that number of
// bytes.
func Sanitize(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r)
	}), " ")
	if len(text) <= most {
		return text
	}
	return finding.Clip(text, most) + "…"
}
