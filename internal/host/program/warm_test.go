package program

import (
	"debug/elf"
	"os"
	"strings"
	"testing"
)

func TestInterpreter(t *testing.T) {
	for text, want := range map[string]string{"": "", "#!/bin/sh\n": "/bin/sh", "#! /usr/bin/env python3\nx": "/usr/bin/env",
		"#!": "", "\x7fELF\x02\x01": "", "\x7fELF\x02\x01" + strings.Repeat("\xff", 100): ""} {
		if got := interpreter([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	head, err := headOf("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	want := ""
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			data := make([]byte, p.Filesz)
			if _, err := p.ReadAt(data, 0); err != nil {
				t.Fatal(err)
			}
			want = strings.TrimRight(string(data), "\x00")
		}
	}
	if got := interpreter(head); got != want {
		t.Errorf("of /bin/sh: %q, want %q", got, want)
	}
	if _, err := os.Stat(want); want != "" && err != nil {
		t.Error(err)
	}
}

func FuzzInterpreter(f *testing.F) {
	head, err := headOf("/bin/sh")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(_ *testing.T, head []byte) { interpreter(head) })
}
