package detect

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	lineText = 100 // bytes of a line from outside in a message
	nameText = 80  // bytes of a name from outside
)

// plainText shortens text from outside for a message: valid UTF-8, one line, nothing that a terminal would obey, at most so
// many bytes.
func plainText(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r)
	}), " ")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// firstOf joins the first names of a list and says how many more there are.
func firstOf(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
