package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/test/need"
)

const root = "../.."

// What cannot be a check is refused, and it is said why.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ id, domain, why string }{
		{"swap", "memory", "there is such a check"},
		{"disk-space", "network", "there is such a check"},
		{"buffer-io-error", "storage", "there is such a rule"},
		{"runtime-killed", "cri", "there is such a rule"},
		{"glitter", "disks", "must be one of cpu, cri, hardware,"},
		{"glitter", "../storage", "must be one of"},
		{"glitter", "checkkit", "must be one of"},
		{"", "storage", "must be words of a-z"},
		{"Disk-Glitter", "storage", "must be words of a-z"},
		{"disk_glitter", "storage", "must be words of a-z"},
		{"disk--glitter", "storage", "must be words of a-z"},
		{"../glitter", "storage", "must be words of a-z"},
		{"9-disks", "storage", "must be words of a-z"},
		{strings.Repeat("glitter-", 5) + "x", "storage", "at most 40 bytes"},
		{"disk-test", "storage", "go would not build disk_test.go"},
		{"disk-arm64", "storage", "go would not build disk_arm64.go"},
		{"disk-windows", "storage", "go would not build disk_windows.go"},
		{"disk-smart-disk", "storage", ""},
		{"nvme-smart", "storage", ""},
	} {
		_, err := plan(root, c.id, c.domain)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("ID=%s DOMAIN=%s: %v, want %q", c.id, c.domain, err, c.why)
		}
	}
}

// Names that the folder has already are refused before anything is written.
func TestRefusedNames(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "pkg/detect/storage")
	if err := os.MkdirAll(filepath.Join(folder, "testdata/with-fixtures"), 0o755); err != nil {
		t.Fatal(err)
	}
	const text = "package storage\n\nfunc DiskGlitter() {}\n\nconst (\n\tother = 1\n\treadDiskSpark = 2\n)\n"
	if err := os.WriteFile(filepath.Join(folder, "disk_shine.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, why := range map[string]string{
		"disk-shine": "disk_shine.go", "with-fixtures": "testdata/with-fixtures",
		"disk-glitter": "declares DiskGlitter", "disk-spark": "declares readDiskSpark",
	} {
		if _, err := plan(dir, id, "storage"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", id, err, why)
		}
	}
}

// Each folder of checks can be given a new one: its line comes below that of the last one of the folder.
func TestEachDomain(t *testing.T) {
	imported := regexp.MustCompile(`/pkg/detect/(\w+)"`)
	list, err := os.ReadFile(filepath.Join(root, listFile))
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, m := range imported.FindAllStringSubmatch(string(list), -1) {
		if m[1] != "kernellog" { // one check, with rules instead of siblings
			folders = append(folders, m[1])
		}
	}
	slices.Sort(folders)
	if diff := cmp.Diff(folders, slices.Sorted(maps.Keys(domains()))); diff != "" {
		t.Errorf("domains (-imported by the list +known here):\n%s", diff)
	}
	for _, folder := range folders {
		changed, err := plan(root, "disk-glitter", folder)
		if err != nil {
			t.Error(err)
			continue
		}
		lines := strings.Split(changed[4].text, "\n")
		at := slices.Index(lines, "\t\tsimple("+folder+".DiskGlitter),")
		if at < 1 || !slices.ContainsFunc(lines[max(0, at-3):at], func(l string) bool {
			return strings.Contains(l, folder+".")
		}) {
			t.Errorf("%s: line %d of the list", folder, at)
		}
	}
}

// A newcomer follows CONTRIBUTING.md word by word, in a copy of the tree: there is a check that works, and a broken
// fixture is noticed.
func TestContributing(t *testing.T) {
	need.Program(t, "make")
	need.Program(t, "go")
	tree := copyOfTree(t)
	commands := section(t, tree, "## Add a check")
	if len(commands) != 6 {
		t.Fatalf("%d commands: %q", len(commands), commands)
	}
	made, fixtures, rest := commands[0], commands[1], commands[2:]
	follow(t, tree, made, "")
	follow(t, tree, fixtures, "ok")

	bad := filepath.Join(tree, "pkg/detect/storage/testdata/disk-glitter/bad.txtar")
	replace(t, bad, "\n2\n", "\n3\n")
	follow(t, tree, fixtures, "--- FAIL: TestFixtures/disk-glitter/bad")
	replace(t, bad, "\n3\n", "\n2\n")

	follow(t, tree, "go test -short -run TestDoc/disk-glitter ./pkg/detect/checks",
		"not written yet: TODO")
	ok := filepath.Join(tree, "pkg/detect/storage/testdata/disk-glitter/ok.txtar")
	replace(t, ok, "Source: TODO", "Source: recorded 2026-11-22 on Linux 6.18. TODO")
	for _, name := range []string{
		"storage/disk_glitter.go", "storage/testdata/disk-glitter/ok.txtar", "storage/testdata/disk-glitter/bad.txtar",
	} {
		replace(t, filepath.Join(tree, "pkg/detect", name), "TODO", "glitter")
	}
	for i, want := range []string{"ok", "ok", "disk-glitter", "disk-glitter"} {
		follow(t, tree, rest[i], want)
	}
	follow(t, tree, made, "ID=disk-glitter: there is such a check")
}

// section returns the commands below a heading of CONTRIBUTING.md.
func section(t *testing.T, tree, heading string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(tree, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("CONTRIBUTING.md has no %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var commands []string
	for _, m := range regexp.MustCompile(`(?m)^ {4,}(\S.*)$`).FindAllStringSubmatch(text, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// follow runs a command of the page. It must say what is wanted, and fail if that is bad news.
func follow(t *testing.T, tree, command, want string) {
	t.Helper()
	words := strings.Fields(command)
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Dir = tree
	// Without the variables of a make that runs this test, and without what costs time only: DWARF and vet.
	quick := "GOFLAGS=-ldflags=-w -vet=off " + os.Getenv("GOFLAGS")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "NODEAGENT_SKIPS=", "CI=", quick)
	out, err := cmd.CombinedOutput()
	bad := strings.Contains(want, "FAIL") || strings.Contains(want, "TODO") || strings.Contains(want, "there is such")
	if !strings.Contains(string(out), want) || (err != nil) != bad {
		t.Fatalf("%s: %v, want %q in\n%s", command, err, want, out)
	}
}

func replace(t *testing.T, name, from, to string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil && !strings.Contains(string(text), from) {
		err = fmt.Errorf("no %q in %s", from, name)
	}
	if err == nil {
		err = os.WriteFile(name, []byte(strings.ReplaceAll(string(text), from, to)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// copyOfTree copies what the commands read.
func copyOfTree(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "Makefile", "CONTRIBUTING.md", "cmd", "internal", "pkg",
		"packaging", "docs", "test/need", "test/newcheck"} {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return change{name: rel, text: string(text)}.write(tree)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tree
}
