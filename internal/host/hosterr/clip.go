package hosterr

// Clip shortens a text that is quoted in an error.
func Clip(text string) string {
	const maxText = 200
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}
