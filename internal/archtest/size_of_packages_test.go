package archtest

import (
	"go/ast"
	"testing"
)

// A package larger than this has more than one subject.
const (
	maxFiles = 40
	maxNames = 300 // at package level
)

// TestPackagesAreSmall: a reader can keep a package in mind.
func TestPackagesAreSmall(t *testing.T) {
	files, names := map[string]int{}, map[string]int{}
	for _, s := range sources(t) {
		files[s.pkg]++
		for _, d := range s.file.Decls {
			names[s.pkg] += declared(d)
		}
	}
	for pkg := range files {
		if files[pkg] > maxFiles || names[pkg] > maxNames {
			t.Errorf("%s has %d files and %d names at package level: at most %d and %d", pkg, files[pkg], names[pkg],
				maxFiles, maxNames)
		}
	}
}

// declared counts the names that a declaration adds to its package. Methods belong to their type.
func declared(d ast.Decl) (n int) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			n++
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				n++
			case *ast.ValueSpec:
				n += len(spec.Names)
			}
		}
	}
	return n
}
