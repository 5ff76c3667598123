package finding

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Counts is a number of things for each severity.
type Counts map[Severity]int

// Texts returns the counts that are not 0, the most severe first: "2 fatal", "1 warning".
func (c Counts) Texts() (texts []string) {
	for _, s := range []Severity{Fatal, Warning, Info} {
		if c[s] > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", c[s], s))
		}
	}
	return texts
}

// Clip returns at most limit bytes of a text, cut between two characters.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:max(limit, 0)]
}

// JoinFirst joins the first names of a list and the number of the others.
func JoinFirst(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
