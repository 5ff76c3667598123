package finding

import "testing"

func TestClip(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"a€b", 4, "a€"}, {"€", 2, ""}, {"a", 0, ""}, {"a", -1, ""}, {"\x80\x80\x80", 2, ""}} {
		if got := Clip(c.text, c.limit); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}
