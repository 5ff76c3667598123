package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// goPackage is the part of the output of "go list -test" that selects the packages of a layer.
type goPackage struct {
	ImportPath, Dir, ForTest           string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Deps                               []string
}

// ofLayers are the packages with layers of their own.
var ofLayers = regexp.MustCompile(`^test/(rpm|lab|e2e|daemonset|guest|guest/inside|newcheck)$`)

// computing has, by package of "race", the tests that compute for long: the detector makes them ten times as slow, and
// their goroutines are those of shorter tests of their package. They run in another layer, without it.
var computing = map[string][]string{ //nolint:gochecknoglobals // a constant
	"pkg/detect/kernellog":           {"TestKernelFormats", "TestLogFlood"},
	"pkg/eventcenter/journal/sqlite": {"TestDamagedPage", "TestScanWithoutIndex"},
	"pkg/eventcenter/report":         {"TestRandomDays"},
	"pkg/report/eventcenter":         {"TestDayWithoutTheCenter"},
}

// whole are the packages whose tests have the machine to themselves, with the reason.
var whole = map[string]string{ //nolint:gochecknoglobals // a constant
	"internal/host/kmsg":   "reads the lines that it writes to the kernel's log",
	"pkg/detect/kernellog": "reads the lines that it writes to the kernel's log",
	"pkg/detect/memory":    "reads the kernel's log of a process killed for want of memory",
	"pkg/detect/network":   "reads the kernel's log of a full table of neighbours",
}

// skipped is the flag -skip of "race".
func skipped() string {
	tests := slices.Concat(slices.Collect(maps.Values(computing))...)
	slices.Sort(tests)
	return "^(" + strings.Join(tests, "|") + ")$"
}

// setsOf sorts the packages with tests into sets:
//
//   - race: those that start goroutines, or that guard data against several of them. The race detector costs a second
//     flavour of all that a test is linked with, so that a package without either runs without it;
//   - release: those whose tests have mounts, processes and networks of their own (mutatetest.SharedRoot), all tests of
//     them: they neither see nor disturb anything of the machine;
//   - machine: those of whole, all tests of them;
//   - apart: the others whose tests ask for something of the machine (test/need), all tests of them: processes, mounts and a
//     network of their own are enough (test/need/apart);
//   - pure: the rest, and those of "release", "machine" and "apart" with tests that need.Nothing leaves out there; and those
//     of "race" alone with tests of computing.
func setsOf(packages []goPackage) (map[string][]string, error) {
	needs := map[string]bool{}
	for _, p := range packages {
		if tested, isTest := strings.CutSuffix(p.ImportPath, ".test"); isTest && slices.Contains(p.Deps, module+"test/need") {
			needs[tested] = true
		}
	}
	sets := map[string][]string{}
	for _, p := range packages {
		if p.ForTest != "" || len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		pkg := strings.TrimPrefix(p.ImportPath, module)
		needsMore := needs[p.ImportPath] && !ofLayers.MatchString(pkg)
		race, err := p.uses(p.GoFiles, concurrent)
		if err != nil {
			return nil, err
		}
		tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		leftOut, err := p.uses(tests, needsNothing)
		if err != nil {
			return nil, err
		}
		ownRoot, err := p.uses(tests, sharedRoot)
		if err != nil {
			return nil, err
		}
		_, computes := computing[pkg]
		_, machine := whole[pkg]
		for set, in := range map[string]bool{"race": race, "release": needsMore && ownRoot, "machine": machine,
			"apart": needsMore && !ownRoot && !machine, "pure": (!race || computes) && (!needsMore || leftOut)} {
			if in {
				sets[set] = append(sets[set], p.ImportPath)
			}
		}
	}
	return sets, nil
}

func list(ctx context.Context) ([]goPackage, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-test",
		"-json=ImportPath,Dir,ForTest,GoFiles,TestGoFiles,XTestGoFiles,Deps", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// uses reports whether one of the files has a node that satisfies is.
func (p goPackage) uses(files []string, is func(ast.Node) bool) (found bool, err error) {
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			found = found || is(n)
			return !found
		})
	}
	return found, nil
}

// concurrent holds for a go statement, for a method Go (of a sync.WaitGroup or an errgroup.Group), for the types of
// package sync that guard data, and for package sync/atomic. sync.Once and its kin need no detector.
func concurrent(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.ImportSpec:
		return n.Path.Value == `"sync/atomic"`
	case *ast.CallExpr:
		method, ok := n.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "Go"
	}
	return named(n, "sync", "Mutex", "RWMutex", "WaitGroup", "Cond", "Map", "Pool")
}

func needsNothing(n ast.Node) bool { return named(n, "need", "Nothing") }

func sharedRoot(n ast.Node) bool { return named(n, "mutatetest", "SharedRoot") }

// named holds for a name of a package.
func named(n ast.Node, pkg string, names ...string) bool {
	selector, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := selector.X.(*ast.Ident)
	return ok && x.Name == pkg && slices.Contains(names, selector.Sel.Name)
}
