package hosterr

// Clip keeps what is quoted in an error short.
func Clip(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
