package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoSilentSkip: only test/need skips tests, which notes each of them and fails those in CI that test/skips.txt
// does not name.
func TestNoSilentSkip(t *testing.T) {
	root, files := "../..", 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (rel != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" ||
			rel == "test/need") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch f.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					t.Errorf("%s: %s: only test/need skips tests", fset.Position(call.Pos()), f.Sel.Name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil || files < 500 {
		t.Fatalf("%d files, %v", files, err)
	}
}
