package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestWrap(t *testing.T) {
	s := screen{width: 20}
	for _, test := range []struct{ name, text, want string }{
		{"short", "all well", "all well"},
		{"long", "this is longer than the line may be", "this is\n          longer\n          than the\n          " +
			"line may\n          be"},
		{"a word that is longer", "x/very/long/path/that/nobody/breaks is kept",
			"x/very/long/path/that/nobody/breaks\n          is kept"},
		{"white space", " a\tb\n c ", "a b c"},
		{"counted in characters", "ääääää ö", "ääääää ö"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, s.wrap(test.text, 10, 10)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPlain: output to anything but a terminal has no colour.
func TestPlain(t *testing.T) {
	var b strings.Builder
	s := screenOf(&b)
	if got := s.column(red, "FATAL", 9) + "|" + s.page("**Why.** `x`"); got != "FATAL    |Why. `x`\n" {
		t.Errorf("%q", got)
	}
	if got := (screen{width: 80, colour: true}).page("`x` y"); got != "\x1b[1mx\x1b[0m y\n" {
		t.Errorf("%q", got)
	}
	if got := (screen{width: 80, colour: true}).column(red, "FATAL", 9); got != "\x1b[31;1mFATAL\x1b[0m    " {
		t.Errorf("%q", got)
	}
}

// TestExplain: the name of a check, of a rule and a reason lead to a page, anything else to an error.
func TestExplain(t *testing.T) {
	for name, want := range map[string]string{
		"load":           "Next. Give limits to the pods",
		"kernel-oops":    "KernelOops",
		"HighLoad":       "load\n",
		"KernelDeadlock": "",
	} {
		var b strings.Builder
		err := explain(&b, name, config.Default())
		if (err != nil) != (want == "") || !strings.Contains(b.String(), want) {
			t.Errorf("%s: %v, %q", name, err, b.String())
		}
	}
}

// A pod has a cgroup in each hierarchy: the status has one line for all of them.
func TestStatusFoldsLeftovers(t *testing.T) {
	report := object.Report{}
	for i := range 30 {
		report.Objects = append(report.Objects, object.Assessment{Verdict: object.Leftover, Why: "no witness knows it",
			Object: object.Object{Kind: object.Cgroup, ID: fmt.Sprint(i), Pod: object.Pod{UID: "u"}}})
	}
	report.Objects = append(report.Objects, object.Assessment{Verdict: object.Candidate, Why: "not yet proven",
		Object: object.Object{Kind: object.Mount, ID: "/m", Pod: object.Pod{UID: "u"}}})
	p := &statusScreen{screen: screen{width: 200}, status: status.Status{Leftovers: &report}}
	p.leftovers()
	text := p.String()
	for _, want := range []string{"leftover cgroup (30) of u: no witness knows it\n", "candidate mount of u: not yet"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "\n") > 5 || strings.Contains(text, "more:") {
		t.Errorf("not folded:\n%s", text)
	}
}

// TestStatusShowsWhatIsThere: status names what the agent last saw at the apiserver, beside when it wrote.
func TestStatusShowsWhatIsThere(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	written := status.SinkStatus{Reporter: "taint", Last: now.Add(-time.Hour)}
	seen := written
	seen.Seen = &status.Seen{At: now.Add(-time.Minute), Shows: "no taint"}
	for want, sink := range map[string]status.SinkStatus{
		"last written 1h0m0s ago":                                written,
		"last written 1h0m0s ago; seen there 1m0s ago: no taint": seen,
	} {
		if got := sinkText(sink, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
