package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An entry whose guard has moved or whose test is gone would protect no code.
func TestTables(t *testing.T) {
	t.Chdir("../..")
	all, err := load("test/mutants")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{}
	for _, m := range all {
		text, err := os.ReadFile(m.File)
		if err != nil {
			t.Errorf("%s: %v", m.Guard, err)
			continue
		}
		changed, err := m.apply(string(text))
		if err != nil {
			t.Errorf("%s: %v", m.Guard, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.File, changed, 0); err != nil {
			t.Errorf("%s: %v", m.Guard, err)
		}
		if _, known := tests[m.Package]; !known {
			tests[m.Package] = testsOf(t, m.Package)
		}
		if !names(m.Run, tests[m.Package]) {
			t.Errorf("%s: %s has no test %s", m.Guard, m.Package, m.Run)
		}
	}
}

// names reports whether every alternative of a pattern names a test.
func names(pattern string, tests []string) bool {
	for part := range strings.SplitSeq(pattern, "|") {
		top, _, _ := strings.Cut(strings.Trim(part, "()"), "/")
		match, err := regexp.Compile(top)
		found := false
		for _, test := range tests {
			found = found || err == nil && match.MatchString(test)
		}
		if top == "" || !found {
			return false
		}
	}
	return true
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

func testsOf(t *testing.T, pkg string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			found = append(found, string(match[1]))
		}
	}
	return found
}

func TestApply(t *testing.T) {
	text := "a\n\tif x {\n\t\treturn\n\t}\nb\n"
	for _, tt := range []struct{ name, old, new, want string }{
		{"part of a line", "x {", "false && x {", "a\n\tif false && x {\n\t\treturn\n\t}\nb\n"},
		{"lines", "if x {\n  return\n}\n", "_ = x", "a\n\t_ = x\nb\n"},
		{"not there", "y", "z", ""},
		{"part of lines", "x { return", "y {", "a\n\tif y {\n\t}\nb\n"},
		{"twice", "r", "z", ""},
		{"no change", "x", "x", ""},
	} {
		got, err := mutant{Old: tt.old, New: tt.new}.apply(text)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
}
