package checkkit

import (
	"testing"
)

func TestPlainText(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"  two\twords\n":             "two words",
		"\x1b[31mred\x00\x7f":        "[31mred",
		"\u202egnp.exe\u200b":        "gnp.exe", // would be read backwards
		"\xff":                       "\uFFFD",
		"0123456789":                 "0123456789",
		"01234567890":                "0123456789…",
		"012345678ä":                 "012345678…", // no partial rune
		"0123456789\xe4\xb8\xad\xe5": "0123456789…",
	} {
		if got := Sanitize(text, 10); got != want {
			t.Errorf("plainText(%q) = %q, want %q", text, got, want)
		}
	}
}
