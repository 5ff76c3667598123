package archtest

import (
	"go/ast"
	"testing"
)

// A package that is larger than this has more than one subject.
const (
	maxFiles = 40
	maxNames = 300 // at package level
)

// TestPackagesAreSmall: a reader holds a package in the head.
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

// declared counts the names that a declaration gives to its package. Methods are their type's.
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
