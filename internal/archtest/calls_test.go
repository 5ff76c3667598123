package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestNoSilentSkip: only test/need may skip tests. It notes each skip and, in CI, fails those that test/skips.txt does
// not list.
func TestNoSilentSkip(t *testing.T) {
	for _, call := range calls(t) {
		switch call.of {
		case "Skip", "Skipf", "SkipNow":
			if !strings.HasPrefix(call.file, "test/need/") {
				t.Errorf("%s: %s: only test/need skips tests", call.position, call.of)
			}
		}
	}
}

// TestProgramsOfTests: only hosttest/executable writes a program that this process may run ("text file busy").
func TestProgramsOfTests(t *testing.T) {
	for _, call := range calls(t) {
		if call.of != "WriteFile" && call.of != "OpenFile" || !strings.HasSuffix(call.file, "_test.go") &&
			!strings.Contains(call.file, "test/") || len(call.args) == 0 {
			continue
		}
		last, ok := call.args[len(call.args)-1].(*ast.BasicLit)
		if !ok {
			continue
		}
		if mode, err := strconv.ParseUint(last.Value, 0, 32); err == nil && mode&0o111 != 0 {
			t.Errorf("%s: %s with mode %s: only executable.Write writes programs", call.position, call.of, last.Value)
		}
	}
}

// call is a call of a method or of another package's function, in any Go file of the repository.
type call struct {
	file     string // below the repository
	position token.Position
	of       string // without the package
	args     []ast.Expr
}

func calls(t *testing.T) []call {
	t.Helper()
	found, err := allCalls()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var allCalls = sync.OnceValues(func() ([]call, error) {
	root, files := "../..", 0
	var found []call
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (rel != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
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
			if c, ok := n.(*ast.CallExpr); ok {
				if f, ok := c.Fun.(*ast.SelectorExpr); ok {
					found = append(found, call{rel, fset.Position(c.Pos()), f.Sel.Name, c.Args})
				}
			}
			return true
		})
		return nil
	})
	if err == nil && files < 500 {
		err = fmt.Errorf("only %d files", files)
	}
	return found, err
})
