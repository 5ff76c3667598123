package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A line of flaky.txt has a date, a layer that is repeated, a test that exists, and a suspicion.
func TestFlaky(t *testing.T) {
	t.Chdir("../..")
	data, err := os.ReadFile("test/flaky.txt")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, layers, _ := strings.Cut(string(makefile), "\nREPEATED := ")
	layers, _, _ = strings.Cut(layers, "\n")
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.SplitN(strings.TrimSpace(line), " ", 5)
		if len(words) != 5 {
			t.Errorf("want date, layer, package, test and suspicion: %s", line)
			continue
		}
		if _, err := time.Parse(time.DateOnly, words[0]); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(" "+layers+" ", " "+words[1]+" ") || guarded(words[2]) {
			t.Errorf("%s is not repeated in layer %s: red is red", words[2], words[1])
		}
		files, err := filepath.Glob(words[2] + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			text, err := os.ReadFile(file) //nolint:gosec // of the checkout
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "func "+words[3]+"(")
		}
		if !found {
			t.Errorf("%s has no %s", words[2], words[3])
		}
	}
}

// All commands beside the lane that owns the machine have processes, mounts, a network and a /run of their own, and each lab
// has a name.
func TestLanesAreApart(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-n", "LANES=", "test-apiserver", "test-chart", "race", "pure",
		"test-npd", "test-new-check", "apart", "test-containerd", "test-lab", "e2e", "e2e-daemonset", "test-daemonset")
	cmd.Dir, cmd.Env = "../..", append(environ(), "NODEAGENT_SUITE=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	tests, labs := 0, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "go test ") {
			continue
		}
		tests++
		if !strings.Contains(line, "-exec ") || !strings.Contains(line, "/test/need/apart ") {
			t.Errorf("has what another lane has: %s", line)
		}
		if strings.Contains(line, "-args -lab") {
			_, name, _ := strings.Cut(line, "/test/need/apart --lab=")
			name, _, _ = strings.Cut(name, "'")
			if name == "" || labs[name] {
				t.Errorf("has no lab of its own: %s", line)
			}
			labs[name] = true
		}
	}
	const want = 12 // the layer "release" is apart by its own means: suite packages release
	if tests != want {
		t.Errorf("%d commands with tests, want %d:\n%s", tests, want, out)
	}
}

// differ lists modules that need versions of their own, with the reason. Each costs a second compilation of all its
// dependents ("make compiled" tells how much).
var differ = map[string]string{ //nolint:gochecknoglobals // a constant
	"test/kubernetes github.com/container-storage-interface/spec": "Kubernetes uses VolumeCondition, which 1.13 does not have",
	"test/npd github.com/containerd/containerd/api":               "node-problem-detector requires it; the product's client needs 1.10",
}

// The programs that tests run are built with the product's versions of modules, so that they are compiled once.
func TestOneVersionOfEachModule(t *testing.T) {
	t.Chdir("../..")
	product := required(t, ".")
	for _, folder := range []string{"test/kubernetes", "test/helm", "test/npd"} {
		for path, version := range required(t, folder) {
			_, excepted := differ[folder+" "+path]
			switch have, shared := product[path]; {
			case shared && have != version && !excepted:
				t.Errorf("%s requires %s %s, the product %s", folder, path, version, have)
			case have == version && excepted:
				t.Errorf("%s requires the product's %s: the exception can go", folder, path)
			}
		}
	}
}

var requirement = regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) (v\S+)(?: // indirect)?$`)

// required returns the versions in a go.mod.
func required(t *testing.T, folder string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, m := range requirement.FindAllStringSubmatch(string(data), -1) {
		versions[m[1]] = m[2]
	}
	if len(versions) == 0 {
		t.Fatalf("%s/go.mod requires nothing", folder)
	}
	return versions
}
