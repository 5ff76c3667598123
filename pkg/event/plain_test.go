package event

import "testing"

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"disk sda: Lesefehler, 読み取りエラー": "disk sda: Lesefehler, 読み取りエラー",
		"two\nlines\x1b[31m":            "two?lines?[31m",
		"abc\u202edef\u200b":            "abc?def?",
		"no \xff UTF-8":                 "no ? UTF-8",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
