package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCount(t *testing.T) {
	tree := fstest.MapFS{
		"a/a.go":          {Data: []byte("// Package a does what it says. Nothing is lost.\npackage a\n\nvar what = \"what nobody reads\" // what that is\n")},
		"a/testdata/b.md": {Data: []byte("what what what")},
		"docs/c.md":       {Data: []byte("What is read\n\n    what is code\n\nand `what` in a line\n\n```\nnothing\n```\n")},
		"docs/c.txt":      {Data: []byte("what")},
	}
	folders, err := count(tree)
	if err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]counted{
		"a":    {words: 12, of: []int{2, 1, 1}},
		"docs": {words: 7, of: []int{1, 0, 0}},
	} {
		got := folders[folder]
		if got == nil || got.words != want.words || got.of[0] != want.of[0] || got.of[1] != want.of[1] || got.of[2] != want.of[2] {
			t.Errorf("%s: %+v, want %+v", folder, got, want)
		}
	}
	if len(folders) != 2 {
		t.Errorf("folders %v", folders)
	}
}

// A folder with few words is no reason to complain; the sum is always there.
func TestReport(t *testing.T) {
	folders := map[string]*counted{"few": {}, "good": {}, "bad": {}}
	folders["few"].add("what what")
	folders["good"].add(strings.Repeat("plain words ", 500))
	folders["bad"].add(strings.Repeat("plain words ", 500) + strings.Repeat("what ", 10))
	for all, want := range map[bool]string{false: "bad all", true: "bad good few all"} {
		var out strings.Builder
		report(&out, folders, all)
		var names []string
		for line := range strings.Lines(out.String()) {
			fields := strings.Fields(line)
			names = append(names, fields[len(fields)-1])
		}
		if got := strings.Join(names[1:], " "); got != want {
			t.Errorf("all %t: %s, want %s\n%s", all, got, want, out.String())
		}
	}
}
