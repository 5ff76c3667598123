package kernellog

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMatcherRefusesMalformedRules(t *testing.T) {
	good := rules.Rule{
		ID: "a-b", Reason: "AB", Domain: rules.CPU, Severity: finding.Info, Summary: "s", Kind: rules.NodeKind,
		Literals: []string{"abc"}, Patterns: []string{"^abc"},
	}
	for name, change := range map[string]func(*rules.Rule){
		"ID":           func(r *rules.Rule) { r.ID = "A b" },
		"reason":       func(r *rules.Rule) { r.Reason = "a b" },
		"severity":     func(r *rules.Rule) { r.Severity = "bad" },
		"no kind":      func(r *rules.Rule) { r.Kind = "" },
		"no literal":   func(r *rules.Rule) { r.Literals, r.Patterns = nil, []string{`^a\d+`} },
		"no pattern":   func(r *rules.Rule) { r.Patterns = nil },
		"short":        func(r *rules.Rule) { r.Literals = []string{"a"} },
		"not anchored": func(r *rules.Rule) { r.Patterns = []string{"abc"} },
		"not RE2":      func(r *rules.Rule) { r.Patterns = []string{"^(?=a)"} },
		"bad exclude":  func(r *rules.Rule) { r.Exclude = "(" },
		"bad recovery": func(r *rules.Rule) { r.Recovery = "^(" },
		"recovery":     func(r *rules.Rule) { r.Recovery = `^\d+` }, // without a literal
		"grave":        func(r *rules.Rule) { r.Escalate = rules.Rate{Count: 2} },
		"follower":     func(r *rules.Rule) { r.Continuation = true },
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			change(&bad)
			if _, err := NewMatcher([]rules.Rule{bad}); err == nil {
				t.Error("accepted")
			}
		})
	}
	if _, err := NewMatcher([]rules.Rule{good, good}); err == nil {
		t.Error("two rules of the same ID were accepted")
	}
	if _, err := NewMatcher([]rules.Rule{good}); err != nil {
		t.Error(err)
	}
}

// TestHostileText: a match shows only one line of valid text.
func TestHostileText(t *testing.T) {
	m := newTable(t)
	hit, ok := m.Match([]byte("INFO: task a\xff\x1b[31m\u202eb\x00:4711 blocked for more than 120 seconds."))
	if !ok || !utf8.ValidString(hit.Subject.Name) || strings.ContainsAny(hit.Subject.Name, "\x1b\x00\u202e") {
		t.Errorf("%v %q", ok, hit.Subject.Name)
	}
	long := []byte("EXT4-fs error (device sda1): " + strings.Repeat("x", 1<<20))
	if _, ok := m.Match(long); !ok {
		t.Error("a long record was not recognised by its beginning")
	}
}

func TestPodOfCgroup(t *testing.T) {
	const uid, id = "6a3c9a52-2a55-4fd7-9a5c-7d2a1c3f8e9b",
		"5e6ad7e6b2b3bd31c79a7e1b1f3f1a0b9b8d7c6e5f4a3b2c1d0e9f8a7b6c5d4e"
	for _, c := range []struct{ path, uid, container string }{
		{"/kubepods/burstable/pod" + uid + "/" + id, uid, id},
		{"/kubepods/pod" + uid, uid, ""},
		{"/lab/kubepods/besteffort/pod" + uid + "/" + id, uid, id},
		{"/kubepods.slice/kubepods-pod6a3c9a52_2a55_4fd7_9a5c_7d2a1c3f8e9b.slice/cri-containerd-" + id + ".scope", uid,
			id},
		{"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod6a3c9a52_2a55_4fd7_9a5c_7d2a1c3f8e9b.slice/crio-" + id + ".scope", uid, id},
		{"/kubepods/burstable/pod0123456789abcdef0123456789abcdef/x", "0123456789abcdef0123456789abcdef", ""},
		{"/kubepods/burstable/pod" + uid + "/" + id + "/kubepods/pod11111111-2a55-4fd7-9a5c-7d2a1c3f8e9b", uid, id},
		{"/user.slice/pod" + uid, "", ""},
		{"/kubepods/burstable/pod-not-a-uid", "", ""},
		{"kubepods/pod" + uid, "", ""},
		{"", "", ""},
	} {
		got, container, ok := podOfCgroup(c.path)
		if ok != (c.uid != "") || ok && (got != c.uid || container != c.container) {
			t.Errorf("%s: %q %q %v", c.path, got, container, ok)
		}
	}
}

func BenchmarkFaulty(b *testing.B) {
	m := newTable(b)
	var lines [][]byte
	for _, rule := range rules.Kernel() {
		for _, x := range rulestest.ReadExamples(b, rule.ID).Match {
			lines = append(lines, []byte(x.Line))
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m.Match(lines[i])
		if i++; i == len(lines) {
			i = 0
		}
	}
}

func BenchmarkNewMatcher(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewMatcher(rules.Kernel()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestWords: a line must start with a literal of its rule, contain one of its words and none of its exceptions.
func TestWords(t *testing.T) {
	m, err := NewMatcher([]rules.Rule{{ID: "x", Reason: "Xy", Domain: rules.Network, Severity: finding.Warning, Summary: "x",
		Literals: []string{"\nice"}, Words: []string{"failed"}, Unless: []string{"on purpose"}, Patterns: []string{`^ice \S+: `},
		Kind: rules.NodeKind}})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]bool{"ice eth0: reset failed": true, "ice eth0: reset": false,
		"ice eth0: reset failed on purpose": false, "device eth0: ice eth0: reset failed": false} {
		if _, ok := m.Match([]byte(line)); ok != want {
			t.Errorf("%v: %s", ok, line)
		}
	}
}
