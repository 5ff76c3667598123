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

func TestBrief(t *testing.T) {
	for text, want := range map[string]string{
		" two\nlines\x1b ":  "two lines",
		"a\u202eb\xff":      "a b�",
		"12345678é":         "12345678",
		"1234567é and more": "1234567é",
	} {
		if got := Brief(text, 9); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
