package finding

import "unicode/utf8"

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
