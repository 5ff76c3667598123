package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	// named is a file or folder of the tree: `pkg/inspect`.
	named = regexp.MustCompile("`((?:cmd|docs|internal|packaging|pkg|test)/[^`]+)`")
	// declaredIn is a name with the file that declares it: `Evaluate` (`pkg/inspect/evaluate.go`).
	declaredIn = regexp.MustCompile("`(\\w+)`\\s+\\(`([^`]+\\.go)`\\)")
)

// docs/architecture.md is a map: all files and folders in it exist, and declare the names in it; files in
// CONTRIBUTING.md exist too, or are about to be created.
func TestArchitectureNamesWhatIsThere(t *testing.T) {
	page := readPage(t, "docs/architecture.md")
	paths := named.FindAllStringSubmatch(page, -1)
	if len(paths) < 30 {
		t.Errorf("only %d paths", len(paths))
	}
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join("../..", path[1])); err != nil {
			t.Error(err)
		}
	}
	names := declaredIn.FindAllStringSubmatch(page, -1)
	if len(names) < 15 {
		t.Errorf("only %d names", len(names))
	}
	for _, n := range names {
		if !slices.Contains(declarations(t, filepath.Join("../..", n[2])), n[1]) {
			t.Errorf("%s does not declare %s", n[2], n[1])
		}
	}
	for line := range strings.Lines(page) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) >= 120 {
			t.Errorf("longer than 119 columns: %s", line)
		}
	}
	for _, path := range named.FindAllStringSubmatch(readPage(t, "CONTRIBUTING.md"), -1) {
		if strings.ContainsAny(path[1], "{*") || strings.Contains(path[1], "disk") { // part of the example
			continue
		}
		if _, err := os.Stat(filepath.Join("../..", path[1])); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// declarations are the functions, methods, types and values that a file declares.
func declarations(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Error(err)
		return nil
	}
	var found []string
	for _, decl := range parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			found = append(found, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					found = append(found, s.Name.Name)
				}
			}
		}
	}
	return found
}
