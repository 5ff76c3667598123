package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/report"
)

func TestText(t *testing.T) {
	for _, test := range []struct{ name, in, want string }{
		{"plain", "disk sda1 is read-only", "disk sda1 is read-only"},
		{"lines", "one\ntwo\x1b[31mred\x00", "one two [31mred"},
		{"broken", "a\xff\xfeb", "a\uFFFDb"},
		{"right to left", "a\u202eb", "a b"},
		{"too long", strings.Repeat("x", 40), strings.Repeat("x", 27) + "…"},
		{"cut between runes", strings.Repeat("é", 20), strings.Repeat("é", 13) + "…"},
		{"enormous", strings.Repeat("é\n", 1<<20), ""},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := report.Text(test.in, 30)
			if test.name == "enormous" {
				test.want = got // only its bounds matter
			}
			if diff := cmp.Diff(test.want, got); diff != "" || len(got) > 30 || !utf8.ValidString(got) {
				t.Errorf("%d bytes:\n%s", len(got), diff)
			}
		})
	}
	if got := report.TextWith(strings.Repeat("x", 100), " (and 2 more)", 30); got != strings.Repeat("x", 14)+
		"… (and 2 more)" {
		t.Errorf("%q", got)
	}
}

func TestReason(t *testing.T) {
	for in, want := range map[string]string{
		"Ext4Error": "Ext4Error", "ext4 error!": "Ext4error", "4xx": "Xx", "": "Unspecified", "ошибка": "Unspecified",
		"A\x00B\xff": "AB", strings.Repeat("A", 50): strings.Repeat("A", 20),
	} {
		if got := report.Reason(in, 20); got != want {
			t.Errorf("Reason(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("disk \xff\n", 30)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 10 || limit > 5000 {
			return
		}
		if got := report.Text(s, limit); len(got) > limit || !utf8.ValidString(got) ||
			strings.ContainsAny(got, "\n\x00\x1b") {
			t.Errorf("Text(%q, %d) = %q", s, limit, got)
		}
		if got := report.Reason(s, limit); got == "" || len(got) > limit {
			t.Errorf("Reason(%q, %d) = %q", s, limit, got)
		}
	})
}
