// Package need declares the requirements of a test on its machine. All tests that are skipped are skipped here, so that
// no test is skipped in silence:
//
//   - with -short a test that needs anything of the machine is skipped, there or not: what remains is pure;
//   - with the environment variable CI set (and without -short) a skip is a failure, unless test/skips.txt names
//     the test together with the reason of the skip;
//   - each skip is noted in the file that the environment variable NODEAGENT_SKIPS names, for a run's summary.
//
// A reason is the same in each run. Variable parts, such as the text of an error, are logged beside it.
package need

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// Root skips a test if it is not root. does is its action as root: "mounts a filesystem".
func Root(t testing.TB, does string) {
	t.Helper()
	of(t, os.Geteuid() == 0, "needs root: "+does)
}

// Program skips a test if one of the programs is not installed. It returns the path of the first.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	var first string
	for i, name := range names {
		path, err := exec.LookPath(name)
		Kernel(t, filepath.Base(name), err)
		if i == 0 {
			first = path
		}
	}
	return first
}

// Kernel skips a test if the machine lacks a feature: "btrfs". err is the evidence.
func Kernel(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Log(err)
	}
	of(t, err == nil, "needs "+what)
}

// Has is Kernel for a lack that shows without an error.
func Has(t testing.TB, has bool, what string) {
	t.Helper()
	of(t, has, "needs "+what)
}

// Flag skips a test of another run: one that needs a flag, or that only a parent starts. It is not meant to run in this
// one, so CI accepts the skip.
func Flag(t testing.TB, given bool, what string) {
	t.Helper()
	if !given {
		reason := "of another run: " + what
		note(t, reason)
		t.Skip(reason)
	}
}

// Nothing declares that a slow test needs no part of the machine. The layers "machine", "apart" and "release" skip it
// (they set the environment variable NODEAGENT_ALONE): "make unit" runs it.
func Nothing(t testing.TB) {
	t.Helper()
	Flag(t, os.Getenv("NODEAGENT_ALONE") == "", "make unit: it takes long and needs nothing of the machine")
}

// Child skips a test that ran once more in a process of its own and was skipped there. out is the output of that
// process with -test.v: it has noted the skip, and failed if CI does not accept it.
func Child(t testing.TB, out []byte) {
	t.Helper()
	if bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")) {
		t.Skipf("in a process of its own: %s", out)
	}
}

// of skips a test for a reason, unless the machine has the required part.
func of(t testing.TB, has bool, reason string) {
	t.Helper()
	if has && !testing.Short() {
		return
	}
	if os.Getenv("CI") != "" && !testing.Short() {
		accepted(t, reason)
	}
	note(t, reason)
	t.Skip(reason)
}

// accepted fails a test whose skip is not in the list.
func accepted(t testing.TB, reason string) {
	t.Helper()
	text, err := list()
	if err != nil {
		t.Fatalf("skipped (%s), which CI is to accept: %v", reason, err)
	}
	lines, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if line.names(pkg(), t.Name()) && line.reason == reason {
			return
		}
	}
	t.Fatalf("CI must not skip this test unless test/skips.txt has the line\n%s %s %s", pkg(), t.Name(), reason)
}

// note appends a skip to the file of the run.
func note(t testing.TB, reason string) {
	t.Helper()
	name := os.Getenv("NODEAGENT_SKIPS")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the file of the run
	if err == nil {
		_, err = fmt.Fprintf(file, "%s\t%s %s\n", reason, pkg(), t.Name())
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Log(err) // the skip matters more than its note; another user's process may not write there
	}
}

// pkg is the package of the running test, below the module.
func pkg() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return strings.TrimPrefix(strings.TrimSuffix(info.Path, ".test"), "github.com/nodeagent/nodeagent/")
}

// list reads test/skips.txt of the module that contains the working directory: that of a test is its package's.
func list() ([]byte, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.ReadFile(filepath.Join(dir, "test/skips.txt")) //nolint:gosec // of the checkout
		}
		if dir == "/" {
			return nil, errors.New("no checkout above the working directory has a test/skips.txt")
		}
	}
}
