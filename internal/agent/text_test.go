package agent

import "testing"

func TestTextOf(t *testing.T) {
	const program = "/usr/bin/nodeagent"
	for _, test := range []struct {
		line       string
		start, end uintptr
		ok         bool
	}{
		{"00400000-01a3b000 r-xp 00000000 fe:00 1234    /usr/bin/nodeagent\n", 0x400000, 0x1a3b000, true},
		{"01a3b000-02000000 r--p 0163b000 fe:00 1234    /usr/bin/nodeagent\n", 0x1a3b000, 0x2000000, true},
		{"02000000-02100000 rw-p 01c00000 fe:00 1234    /usr/bin/nodeagent\n", 0, 0, false},
		{"00400000-01a3b000 r-xp 00000000 fe:00 99      /usr/bin/other\n", 0, 0, false},
		{"c000000000-c000400000 rw-p 00000000 00:00 0\n", 0, 0, false},
		{"x-y r-xp 0 0 0 /usr/bin/nodeagent\n", 0, 0, false},
		{"", 0, 0, false},
	} {
		got, ok := textOf(test.line, program)
		if want := (span{test.start, test.end}); ok != test.ok || ok && got != want {
			t.Errorf("%q: got %x, %v", test.line, got, ok)
		}
	}
}
