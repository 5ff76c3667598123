package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/nodeagent/nodeagent/"

// mayImport lists which of our own packages a package may import. The longest prefix of the importing package counts. A
// package without an entry may import anything.
var mayImport = map[string][]string{
	"pkg/finding":          {},
	"pkg/detect":           {"pkg/finding", "pkg/detect", "internal/host", "internal/setting"},
	"pkg/detect/checktest": {"pkg/finding", "pkg/detect", "internal/host", "test/need"},
	"pkg/inspect":          {"pkg/finding", "pkg/inspect", "internal/host"},
	// One looks up only: objects, who knows their pods, the kinds with their listers, and the verdict, which is pure.
	"pkg/inspect/object":   {"pkg/finding", "pkg/inspect/optout", "internal/host"},
	"pkg/inspect/hostscan": {"pkg/finding", "internal/host"},
	"pkg/inspect/witness":  {"pkg/finding", "pkg/inspect/object", "pkg/inspect/hostscan", "internal/host"},
	"pkg/inspect/kinds": {"pkg/finding", "pkg/inspect/object", "pkg/inspect/witness", "pkg/inspect/hostscan",
		"internal/host"},
	"pkg/inspect/verdict": {"pkg/finding", "pkg/inspect/object", "pkg/inspect/witness", "pkg/inspect/kinds",
		"internal/host/hosterr"},
	"pkg/remediate": {"pkg/finding", "pkg/inspect", "pkg/remediate", "internal/host", "internal/mutate",
		"internal/atomicfile", "internal/faultpoint", "internal/setting"},
	// The evidence and the actions know neither the runner nor its journal, which see the actions as a table.
	"pkg/remediate/release/csi": {"pkg/finding", "pkg/inspect/object", "internal/host", "internal/mutate",
		"internal/atomicfile"},
	"pkg/remediate/release/actions": {"pkg/inspect/object", "pkg/inspect/witness", "pkg/remediate/release/csi",
		"internal/host", "internal/mutate"},
	"pkg/report":          {"pkg/finding", "pkg/report", "internal/setting"},
	"pkg/event":           {"pkg/finding"},
	"pkg/event/schemas":   {"pkg/event/schemas"},
	"internal/atomicfile": {},
	"internal/setting":    {},
	"pkg/eventcenter":     {"pkg/event", "pkg/eventcenter", "pkg/finding", "pkg/web", "internal/atomicfile"},
	// The pages of all programs: it knows none of them.
	"pkg/web":       {"pkg/event", "pkg/web", "internal/atomicfile"},
	"internal/host": {"pkg/finding", "internal/host", "internal/setting"},

	// The evaluation of a pod is pure: from a timeline to a verdict.
	"pkg/trace/record":  {"pkg/finding"},
	"pkg/trace/stage":   {"pkg/trace/record"},
	"pkg/trace/verdict": {"pkg/trace/record", "pkg/trace/stage"},
	"pkg/trace/reason":  {"pkg/trace/record", "pkg/trace/stage"},
	"pkg/trace/health":  {"pkg/trace/sli"},
	"pkg/trace/watch":   {"pkg/trace/follow", "internal/kube/groups"},
	"pkg/trace":         {"pkg/event", "pkg/finding", "pkg/trace", "pkg/web", "internal/atomicfile"},

	"internal/mutate": {"internal/host", "pkg/finding", "internal/mutate"},
	// A child of the agent initializes all that its package imports: see TestChildrenAreLight.
	"internal/mutate/child": {"internal/host", "pkg/finding"},

	"pkg/report/eventcenter": {"pkg/finding", "pkg/report", "pkg/event", "internal/setting"},
	"internal/host/hosttest": {"pkg/finding", "internal/host", "test/need"},
	"pkg/inspect/inspecttest": {"pkg/finding", "pkg/inspect/hostscan", "pkg/inspect/object", "pkg/inspect/witness",
		"internal/host", "test/need"},
	"internal/mutate/mutatetest": {"pkg/finding", "internal/host", "internal/mutate", "test/need"},
	"test/need":                  {},

	"internal/kube":        {"internal/host", "internal/kube/groups", "pkg/finding"},
	"internal/kube/groups": {},
	"cmd/nodeagent/config": {"internal/host", "internal/setting", "pkg/finding", "pkg/detect", "pkg/inspect",
		"pkg/remediate", "pkg/report"},
	"internal/store":      {"pkg/finding"},
	"internal/faultpoint": {},
}

// pure lists the packages whose result depends only on their arguments, with the standard library packages they import.
var pure = map[string][]string{
	"pkg/inspect/verdict": {"bytes", "cmp", "encoding/json", "errors", "fmt", "io/fs", "maps", "slices", "strings", "time"},
	"pkg/trace/record":    {"hash/fnv", "slices", "strconv", "time"},
	"pkg/trace/stage":     {"slices", "time"},
	"pkg/trace/verdict":   {"time"},
	"pkg/trace/reason":    {"cmp", "slices", "strings", "time"},
}

// systemPackages are the only ones that may make system calls or start a process.
var systemPackages = []string{"internal/", "test/", "cmd/", "packaging/", "pkg/detect/checktest/",
	"pkg/inspect/inspecttest/"}

// source is one parsed file of the product, without tests.
type source struct {
	pkg  string // path below the module
	name string
	file *ast.File
	fset *token.FileSet
}

func sources(t *testing.T) []source {
	t.Helper()
	root := "../.."
	var found []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "test/kubernetes" ||
				rel == "test/helm") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		found = append(found, source{filepath.ToSlash(filepath.Dir(rel)), rel, file, fset})
		return nil
	})
	if err != nil || len(found) < 50 {
		t.Fatalf("%d files, %v", len(found), err)
	}
	return found
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		allowed, ruled := rule(s.pkg)
		for _, spec := range s.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if own, ok := strings.CutPrefix(path, module); ok {
				if ruled && !within(own, allowed) && own != s.pkg {
					t.Errorf("%s imports %s; it may import %v", s.name, own, allowed)
				}
				continue
			}
			if of, ok := pure[s.pkg]; ok && !slices.Contains(of, path) {
				t.Errorf("%s imports %s: %s is pure", s.name, path, s.pkg)
			}
			if (path == "os/exec" || path == "golang.org/x/sys/unix") && !hasPrefix(s.pkg+"/", systemPackages) {
				t.Errorf("%s imports %s: only systemPackages may", s.name, path)
			}
		}
	}
}

func rule(pkg string) (allowed []string, ok bool) {
	for prefix := pkg; prefix != "."; prefix = filepath.Dir(prefix) {
		if allowed, ok := mayImport[prefix]; ok {
			return allowed, true
		}
	}
	return nil, false
}

func within(pkg string, allowed []string) bool {
	for _, a := range allowed {
		if pkg == a || strings.HasPrefix(pkg, a+"/") {
			return true
		}
	}
	return false
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// TestPureKnowsNoTime: pure packages do not read the clock either.
func TestPureKnowsNoTime(t *testing.T) {
	for _, s := range sources(t) {
		if _, ok := pure[s.pkg]; !ok {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := f.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"},
					f.Sel.Name) {
					t.Errorf("%s: time.%s", s.fset.Position(n.Pos()), f.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestNothingEndsTheProcess: no code below cmd panics or exits; a faulty check must not take the agent down.
func TestNothingEndsTheProcess(t *testing.T) {
	// Children of the agent and of tests are separate processes: they exit by themselves.
	children := []string{"internal/host/probe/prober_child.go", "internal/mutate/child/child.go",
		"internal/faultpoint/armed.go", "internal/host/hosttest/thread/main_ended.go"}
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.pkg, "pkg") && !strings.HasPrefix(s.pkg, "internal") || hasPrefix(s.name, children) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch f := call.Fun.(type) {
			case *ast.Ident:
				if f.Name == "panic" {
					t.Errorf("%s: panic", s.fset.Position(call.Pos()))
				}
			case *ast.SelectorExpr:
				if x, ok := f.X.(*ast.Ident); ok && (x.Name == "os" && f.Sel.Name == "Exit" || x.Name == "log" &&
					strings.HasPrefix(f.Sel.Name, "Fatal")) {
					t.Errorf("%s: %s.%s", s.fset.Position(call.Pos()), x.Name, f.Sel.Name)
				}
			}
			return true
		})
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s: init()", s.fset.Position(f.Pos()))
			}
		}
	}
}
