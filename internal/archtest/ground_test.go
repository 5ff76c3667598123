package archtest

import (
	"flag"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of folders into docs/architecture.md")

const groundBegins, groundEnds = "## The ground\n", "## Where to add what\n"

// docs/architecture.md has a sentence about each folder below internal/host and pkg/inspect: that of its package comment.
func TestArchitectureHasEachFolder(t *testing.T) {
	var list strings.Builder
	list.WriteString(groundBegins + "\n`internal/host` reads the machine and `pkg/inspect` judges what pods left there; " +
		"their folders, without those of tests:\n\n")
	for _, root := range []string{"internal/host", "pkg/inspect"} {
		for _, folder := range folders(t, root) {
			list.WriteString(wrapped("* `"+folder+"` "+sentenceOf(t, folder)) + "\n")
		}
	}
	list.WriteString("\n")
	page := readPage(t, "docs/architecture.md")
	before, rest, found := strings.Cut(page, groundBegins)
	_, after, ends := strings.Cut(rest, groundEnds)
	if want := before + list.String() + groundEnds + after; !found || !ends || page != want {
		t.Error("the list of folders is not up to date: go test ./internal/archtest -run EachFolder -update")
		if *update && found && ends {
			if err := os.WriteFile("../../docs/architecture.md", []byte(want), 0o644); err != nil { //nolint:gosec // a page
				t.Fatal(err)
			}
		}
	}
}

func folders(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, root+"/") && !strings.HasSuffix(s.pkg, "test") && !strings.Contains(s.pkg, "test/") &&
			!slices.Contains(found, s.pkg) {
			found = append(found, s.pkg)
		}
	}
	slices.Sort(found)
	return found
}

// sentenceOf is the first sentence of a package comment, without the name of the package.
func sentenceOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		text, found := strings.CutPrefix(new(doc.Package).Synopsis(parsed.Doc.Text()), "Package "+parsed.Name.Name+" ")
		if found {
			return text
		}
	}
	t.Errorf("%s has no package comment", folder)
	return ""
}

// wrapped breaks an item of a list into lines of less than 120 columns.
func wrapped(item string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(item) {
		if n := len([]rune(word)); i > 0 && width+1+n >= 120 {
			b.WriteString("\n  " + word)
			width = 2 + n
			continue
		} else if i > 0 {
			b.WriteString(" ")
			width++
		}
		b.WriteString(word)
		width += len([]rune(word))
	}
	return b.String()
}
