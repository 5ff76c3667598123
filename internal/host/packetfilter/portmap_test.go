package packetfilter

import "testing"

func TestContainerOf(t *testing.T) {
	for comment, want := range map[string][2]string{
		`dnat name: "pods" id: "abc"`: {"pods", "abc"}, `dnat name: "a\" id: \"b" id: "c"`: {`a" id: "b`, "c"},
		"abc": {"", "abc"}, `dnat name: "pods" id: "ab`: {}, `dnat name: `: {}, `dnat name: "x`: {}, "": {},
	} {
		if network, container := containerOf(comment); network != want[0] || container != want[1] {
			t.Errorf("%s: %q, %q", comment, network, container)
		}
	}
	for data, want := range map[string]string{"\x00\x04abc\x00": "abc", "\x01\x01x\x00\x02y\x00": "y", "\x00\x09ab": "",
		"\x00": "", "": ""} {
		if got := commentOf([]byte(data)); got != want {
			t.Errorf("%q: %q", data, got)
		}
	}
}
