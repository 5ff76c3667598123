package override

import (
	"os"
	"strings"
	"testing"
)

// All errors are reported at once, each with file and line, and the result is empty.
func TestMistakes(t *testing.T) {
	for data, want := range map[string][]string{
		"":                                     {"o.yaml: no reasons"},
		"# none":                               {"o.yaml"},
		"reasons: {}":                          {"o.yaml:1: no reasons"},
		"reasons: [a]":                         {"o.yaml:1: reasons: must be a map"},
		"- a":                                  {"o.yaml:1: must be a map"},
		"a: 1\nreasons:\n  OOM: {class: user}": {`o.yaml:1: unknown key "a"`, `o.yaml:3: no reason "OOM"`},
		"reasons:\n  ImageNotFound: {class: nobody}\n  InitSlow: system\n": {`o.yaml:2: ImageNotFound: class "nobody": must be system or user`,
			"o.yaml:3: InitSlow: must be a map"},
		"reasons:\n  InitSlow:\n    kind: user\n": {`o.yaml:3: InitSlow: unknown key "kind"`,
			"o.yaml:2: InitSlow: no class"},
		"reasons:\n  InitSlow: {class: user}\n  InitSlow: {class: user}\n":       {"o.yaml:3: reasons: InitSlow is given twice"},
		"reasons:\n  Unknown: {class: user}\n":                                   {`o.yaml:2: Unknown: has no class`},
		"reasons:\n  InitSlow: {class: user}\n---\nreasons: {}\n":                {"o.yaml: more than one document"},
		"reasons:\n  InitSlow: &a {class: user}\n  InitFailed: *a\n":             {"o.yaml:3: InitFailed: must be a map"},
		"reasons:\n  InitSlow: {class: user, class: system}\n":                   {"o.yaml:2: InitSlow: class is given twice"},
		"reasons:\n\tInitSlow: {class: user}\n":                                  {"o.yaml: ", "line 2"},
		"reasons:\n  InitSlow: {class: user}\nreasons:\n  Init: {class: user}\n": {"o.yaml:3: reasons is given twice"},
	} {
		o, err := Parse("o.yaml", []byte(data))
		if err == nil || o != nil {
			t.Errorf("%q: %v", data, o)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: no %q in %q", data, part, err)
			}
		}
	}
}

// The example in docs/trace.md is a valid file.
func TestExample(t *testing.T) {
	page, err := os.ReadFile("../../../docs/trace.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/trace.md has no example")
	}
	if o, err := Parse("docs/trace.md", []byte(example)); err != nil || len(o) == 0 {
		t.Errorf("%v %v", o, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("reasons:\n  ImageNotFound: {class: system}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := Parse("o", data); (err == nil) == (len(o) == 0) {
			t.Errorf("%v, %v", o, err)
		}
	})
}
