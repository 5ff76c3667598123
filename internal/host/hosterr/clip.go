package hosterr

import "github.com/nodeagent/nodeagent/pkg/finding"

// Clip shortens a text that is quoted in an error.
func Clip(text string) string {
	const maxText = 200
	if len(text) > maxText {
		return finding.Clip(text, maxText) + "…"
	}
	return text
}
