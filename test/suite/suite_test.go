package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A failing test of a layer with -again does not end the run; it runs again at the end, and only that result counts.
func TestAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		pkg, test string // of a test that fails the first time
		layer     int    // exit code of the layer
		end       int    // of the end, if the layer passes
		want      string // printed at the end
	}{
		"flaky":         {pkg: "busy", test: onceRed, want: "flaky: busy TestIt of machine failed, and passed alone"},
		"red":           {pkg: "busy", test: red, end: 1, want: "failed twice: busy TestIt of machine"},
		"hung":          {pkg: "busy", test: onceHung, want: "flaky: busy TestIt of machine"},
		"guards a node": {pkg: "pkg/inspect/verdict", test: onceRed, layer: 1},
		"green":         {pkg: "busy", test: "func TestIt(*testing.T) {}", want: "machine"},
		"no test runs":  {pkg: "busy", test: "func init() { os.Exit(1) }", layer: 1},
		"no code":       {pkg: "busy", test: "func", layer: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, suite := checkout(t, tt.pkg, tt.test), t.TempDir()
			out, code := run(t, dir, suite, "layer", "-again", "machine", "go", "test", "-timeout", "5s", "./...")
			if code != tt.layer {
				t.Fatalf("exit code %d, want %d:\n%s", code, tt.layer, out)
			}
			if code != 0 {
				return
			}
			out, code = run(t, dir, suite, "end")
			if code != tt.end || !strings.Contains(out, tt.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, tt.end, tt.want, out)
			}
		})
	}
}

// Outside of a run of the whole suite, and in a layer without -again, a failing test fails the layer.
func TestNotAgain(t *testing.T) {
	dir := checkout(t, "busy", onceRed)
	if out, code := run(t, dir, "", "layer", "-again", "machine", "go", "test", "./..."); code != 1 {
		t.Errorf("without a suite: exit code %d:\n%s", code, out)
	}
	dir = checkout(t, "busy", onceRed)
	if out, code := run(t, dir, t.TempDir(), "layer", "race", "go", "test", "./..."); code != 1 {
		t.Errorf("without -again: exit code %d:\n%s", code, out)
	}
}

const (
	marker  = `func first() bool { _, err := os.Stat("seen"); os.WriteFile("seen", nil, 0o600); return err != nil }` + "\n"
	onceRed = marker + `func TestIt(t *testing.T) { if first() { t.Error("red") } }
func TestOther(*testing.T) {}`
	onceHung = marker + `func TestIt(t *testing.T) { if first() { select {} } }`
	red      = marker + `func TestIt(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Error("red", first()) }) }`
)

// checkout returns a module with the product's name and one package, which has one test file.
func checkout(t *testing.T, pkg, test string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/nodeagent/nodeagent\ngo 1.26\n")
	write(pkg+"/it_test.go", "package it\nimport (\"os\"; \"testing\")\nvar _ = os.Stat\nvar _ testing.T\n"+test+"\n")
	return dir
}

// run runs this program in a folder.
func run(t *testing.T, dir, suite string, args ...string) (output string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), child+"=1", "NODEAGENT_SUITE="+suite, "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

const child = "NODEAGENT_TEST_SUITE"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		os.Exit(realMain(context.Background(), os.Args[1:], os.Getenv("NODEAGENT_SUITE")))
	}
	os.Exit(m.Run())
}

// The race detector runs if goroutines are started or data is guarded against several.
func TestConcurrent(t *testing.T) {
	for source, want := range map[string]bool{
		"func f() { go f() }":                                     true,
		"func f(g *errgroup.Group) { g.Go(nil) }":                 true,
		"type t struct { mu sync.Mutex }":                         true,
		"type t struct { mu struct { sync.RWMutex } }":            true,
		"var m sync.Map":                                          true,
		`import "sync/atomic"`:                                    true,
		"var f = sync.OnceValue(g)":                               false,
		"func f() { defer f() }":                                  false,
		"func f(ctx context.Context) { ctx.Done(); cmd.Start() }": false,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\n"+source, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := false
		ast.Inspect(file, func(n ast.Node) bool {
			got = got || concurrent(n)
			return true
		})
		if got != want {
			t.Errorf("%s: %v", source, got)
		}
	}
}

// sets of the checkout.
var sets = sync.OnceValues(func() (map[string][]string, error) {
	packages, err := list(context.Background())
	if err != nil {
		return nil, err
	}
	return setsOf(packages)
})

// Each package with tests is in race or pure or, with all its tests, in release, machine or apart.
func TestPackages(t *testing.T) {
	t.Chdir("../..")
	sets, err := sets()
	if err != nil {
		t.Fatal(err)
	}
	has := func(set, pkg string) bool { return slices.Contains(sets[set], module+pkg) }
	for _, pkg := range []string{"pkg/detect", "pkg/report", "cmd/nodeagent/agent/daemon", "pkg/eventcenter/deliver"} {
		if !has("race", pkg) {
			t.Errorf("%s starts goroutines and is not in race", pkg)
		}
	}
	if has("race", "pkg/finding") || !has("pure", "pkg/finding") {
		t.Error("pkg/finding starts no goroutine and needs nothing")
	}
	if !has("apart", "internal/host/probe") || has("machine", "internal/host/probe") || has("apart", "test/e2e") {
		t.Error("internal/host/probe is apart; test/e2e has a layer of its own")
	}
	if !has("release", "pkg/remediate/release") || has("apart", "pkg/remediate/release") || has("release", "internal/host/probe") {
		t.Error("pkg/remediate, and not internal/host/probe, has a shared root of its own")
	}
	for pkg := range whole {
		if !has("machine", pkg) || has("apart", pkg) || has("release", pkg) {
			t.Errorf("%s has the machine to itself", pkg)
		}
	}
	all, err := list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if pkg := p.ImportPath; p.ForTest == "" && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 &&
			!slices.Contains(slices.Concat(slices.Collect(maps.Values(sets))...), pkg) {
			t.Errorf("no layer has %s", pkg)
		}
	}
	if err := printPackages(t.Context(), "fast"); err == nil {
		t.Error("a set that does not exist has packages")
	}
}

// A test that the race layer skips runs in another one, and no other test has its name.
func TestComputing(t *testing.T) {
	t.Chdir("../..")
	sets, err := sets()
	if err != nil {
		t.Fatal(err)
	}
	skip, err := regexp.Compile(skipped())
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, pkg := range sets["race"] {
		files, err := filepath.Glob(strings.TrimPrefix(pkg, module) + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for name, body := range testsOf(t, file) {
				if !skip.MatchString(name) {
					continue
				}
				seen++
				pkg := strings.TrimPrefix(pkg, module)
				elsewhere := slices.Contains(slices.Concat(sets["machine"], sets["apart"], sets["release"]), module+pkg) && !body(needsNothing)
				if !slices.Contains(computing[pkg], name) || !elsewhere && !slices.Contains(sets["pure"], module+pkg) {
					t.Errorf("%s: the race layer skips %s, and no other runs it", file, name)
				}
			}
		}
	}
	if want := len(slices.Concat(slices.Collect(maps.Values(computing))...)); seen != want {
		t.Errorf("%d tests are skipped, %d are listed", seen, want)
	}
}

// testsOf returns the tests of a file, each with whether it has a node.
func testsOf(t *testing.T, file string) map[string]func(is func(ast.Node) bool) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(func(ast.Node) bool) bool{}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
			tests[f.Name.Name] = func(is func(ast.Node) bool) (has bool) {
				ast.Inspect(f, func(n ast.Node) bool {
					has = has || is(n)
					return !has
				})
				return has
			}
		}
	}
	return tests
}

func TestPrintCompiled(t *testing.T) {
	const a, b = "0000000000000000000000000000000000000000000000000000000000000000-d",
		"1111111111111111111111111111111111111111111111111111111111111111-d"
	file := filepath.Join(t.TempDir(), "compiled")
	text := `{"Package":"net","Source":"net","Flags":null,"Deps":{}}
{"Package":"x/text","Source":"x/text@v1","Flags":null,"Deps":{}}
{"Package":"x/text","Source":"x/text@v2","Flags":null,"Deps":{}}
{"Package":"grpc","Source":"grpc@v1","Flags":null,"Deps":{"x/text":"` + a + `","net":"` + a + `"}}
{"Package":"grpc","Source":"grpc@v1","Flags":null,"Deps":{"x/text":"` + b + `","net":"` + a + `"}}
{"Package":"app","Source":"app","Flags":null,"Deps":{}}
{"Package":"app","Source":"app","Flags":["-race"],"Deps":{}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printCompiled(&out, file); err != nil {
		t.Fatal(err)
	}
	want := `7 compilations of 4 packages, 3 of them again:
    1  depends on x/text@v1 and x/text@v2: grpc
    1  flags "" and "-race": app
    1  source x/text@v1 and x/text@v2: x/text
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// The compiler's calls are recorded, and the build is the same as without the recorder.
func TestRecord(t *testing.T) {
	dir := checkout(t, "busy", fmt.Sprintf("func TestIt(*testing.T) {} // never compiled before: %s", t.TempDir()))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "compiled")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-toolexec", self+" record "+file, "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), child+"=1", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), `"Source":"github.com/nodeagent/nodeagent/busy"`) {
		t.Errorf("%v\n%s", err, data)
	}
	plain := exec.CommandContext(t.Context(), "go", "test", "-x", "./...")
	plain.Dir, plain.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath")
	if out, err := plain.CombinedOutput(); err != nil || strings.Contains(string(out), "/compile -o") {
		t.Errorf("%v: compiled again:\n%s", err, out)
	}
}

// A layer ends with the list of skipped tests, each once, and with the exit code of the command.
func TestRunSaysWhatWasSkipped(t *testing.T) {
	const script = `for i in 1 2 3 4 5 6; do printf 'needs a\tpkg/x Test%s\n' $i; done >>$NODEAGENT_SKIPS
printf 'needs b\tpkg/x Test1\nneeds b\tpkg/x Test1\n' >>$NODEAGENT_SKIPS; echo ok; exit 3`
	var out bytes.Buffer
	l := layer{Name: "x", Command: []string{"sh", "-c", script}, Path: os.Getenv("PATH")}
	result, err := l.run(t.Context(), &out, io.Discard)
	if err != nil || result.Exit != 3 || result.Skipped != 7 {
		t.Errorf("%+v %v", result, err)
	}
	const want = `ok
skipped: 7
   6  needs a (pkg/x Test1, pkg/x Test2, pkg/x Test3, pkg/x Test4, pkg/x Test5 ...)
   1  needs b (pkg/x Test1)
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	table(&out, []result{
		{Layer: layer{Name: "machine"}, Wall: 61e9, CPU: 90e9, Tests: 12, Skipped: 3},
		{Layer: layer{Name: "vet"}, Wall: 2e9, CPU: 3e9},
	})
	want := "    layer  wall s  processor s  tests  skipped\n" +
		"  machine      61           90     12        3\n" +
		"      vet       2            3      0        0\n" +
		"      all      63           93     12        3\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
