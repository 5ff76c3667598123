package replay

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
)

func seed(f *testing.F) {
	for _, rule := range rules.Kernel() {
		for _, x := range rulestest.ReadExamples(f, rule.ID).Match {
			f.Add([]byte(x.Line))
		}
	}
}

func FuzzMatch(f *testing.F) {
	seed(f)
	m := kernelMatcher(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		hit, ok := m.Match(text)
		if ok != (hit.Rule != nil) {
			t.Fatalf("%v %v", ok, hit.Rule)
		}
		if strings.ContainsAny(hit.Subject.Name, "\n\x00\x1b") || !utf8.ValidString(hit.Subject.Name) {
			t.Fatalf("subject %q", hit.Subject.Name)
		}
	})
}

func FuzzReplay(f *testing.F) {
	for _, line := range benignLines(f) {
		f.Add([]byte("[    1.000000] " + string(line)))
	}
	f.Add([]byte("6,1,1,-;x\n SUBSYSTEM=block\n6,2,2,c;y\n"))
	f.Add([]byte("{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":[1,2,3]}\n"))
	f.Add([]byte("-- Boot x --\nNov 21 01:02:03 host kernel: x\n"))
	for _, line := range corpus(f, "words.txt") {
		f.Add([]byte(line[strings.Index(line, " | ")+3:]))
	}
	m, daemons := kernelMatcher(f), newDaemonTable(f)
	f.Fuzz(func(t *testing.T, log []byte) {
		for _, format := range []Format{Auto, Dmesg, Kmsg, Journal} {
			last := 0
			sum, err := Replay{Format: format, Daemons: daemons}.Read(m, strings.NewReader(string(log)),
				func(x Found) error {
					if x.Number <= last || !utf8.ValidString(x.Line) || strings.ContainsAny(x.Line, "\n\x00") {
						t.Fatalf("line %d after %d: %q", x.Number, last, x.Line)
					}
					last = x.Number
					return nil
				})
			if err != nil || last > sum.Lines || sum.Bad+sum.Kernel+sum.Daemon+sum.Foreign > sum.Lines {
				t.Fatalf("%s: %+v, %v", format, sum, err)
			}
		}
	})
}
