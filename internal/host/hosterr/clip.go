package hosterr

// Clip keeps what is quoted in an error short.
func Clip(text string) string {
	const maxText = 200
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}
