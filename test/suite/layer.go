package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// layer is a command of the suite.
type layer struct {
	Name    string
	Command []string
	Again   bool   // a test that fails is run once more at the end
	Path    string // the PATH that it was called with, which may have another containerd first
}

// result is the outcome of a layer.
type result struct {
	Layer   layer
	Wall    time.Duration
	CPU     time.Duration // of the command and of all its children that it waited for
	Tests   int           // that ran, without their subtests
	Skipped int           // with their subtests
	Failed  []test        // to be run again
	Exit    int
}

// test names a test without its subtests.
type test struct{ Package, Name string }

// guards are the packages that keep a node from harm: a test of theirs that fails is never repeated.
var guards = []string{"pkg/inspect", "pkg/remediate", "internal/mutate"} //nolint:gochecknoglobals // a constant

const module = "github.com/nodeagent/nodeagent/"

func guarded(pkg string) bool {
	pkg = strings.TrimPrefix(pkg, module)
	return slices.ContainsFunc(guards, func(guard string) bool { return pkg == guard || strings.HasPrefix(pkg, guard+"/") })
}

// run runs the command. An error means that it could not be run.
func (l layer) run(ctx context.Context, stdout, stderr io.Writer) (result, error) {
	skips, err := os.CreateTemp("", "skips")
	if err != nil {
		return result{}, err
	}
	defer os.Remove(skips.Name())
	defer skips.Close()
	argv := l.Command
	if l.tests() {
		at := 2
		if len(argv) > at && argv[at] == "-C" { // has to be the first flag
			at += 2
		}
		argv = slices.Insert(slices.Clone(argv), at, "-json")
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the layer's command
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(environ(), "NODEAGENT_SKIPS="+skips.Name(), "PATH="+l.Path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	var lines io.ReadCloser
	if l.tests() {
		cmd.Stdout = nil
		if lines, err = cmd.StdoutPipe(); err != nil {
			return result{}, err
		}
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	seen := newOutcome(stdout, l.Name, slices.Contains(l.Command, "-v"))
	if lines != nil {
		err = seen.read(lines)
	}
	wait := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil || wait != nil && !errors.As(wait, &exit) {
		return result{}, fmt.Errorf("%s: %w", strings.Join(argv, " "), errors.Join(err, wait))
	}
	r := result{Layer: l, Wall: time.Since(began), CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		Tests: seen.ran, Exit: cmd.ProcessState.ExitCode()}
	if r.Exit != 0 && l.Again && ctx.Err() == nil {
		r.repeat(seen, stderr)
	}
	text, err := os.ReadFile(skips.Name())
	if err != nil {
		return result{}, err
	}
	r.Skipped = printSkips(stdout, string(text))
	fmt.Fprintf(stderr, "%s took %.0f s, %.0f s of processor time\n", l.Name, r.Wall.Seconds(), r.CPU.Seconds())
	return r, nil
}

// tests reports whether the command is "go test".
func (l layer) tests() bool {
	return len(l.Command) > 1 && l.Command[0] == "go" && l.Command[1] == "test"
}

// environ is the environment without the variables of make: a make that a test starts does not belong to the run.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "MAKEFLAGS" || name == "MFLAGS" || name == "MAKELEVEL"
	})
}

// repeat notes the failed tests for a second run at the end, if there is no other failure, and then counts the layer's
// exit as success.
func (r *result) repeat(seen *outcome, stderr io.Writer) {
	failed := seen.failures()
	switch {
	case seen.broken != "":
		fmt.Fprintf(stderr, "%s: not repeated: %s\n", r.Layer.Name, seen.broken)
		return
	case len(failed) == 0:
		return
	}
	for _, f := range failed {
		if guarded(f.Package) {
			fmt.Fprintf(stderr, "%s: not repeated: %s %s guards the node\n", r.Layer.Name, f.Package, f.Name)
			return
		}
	}
	r.Failed, r.Exit = failed, 0
	for _, f := range failed {
		fmt.Fprintf(stderr, "%s: %s %s failed and runs once more when the rest is done\n", r.Layer.Name, f.Package, f.Name)
	}
}

// save writes the result into the folder of the run.
func (r result) save(folder string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, r.Layer.Name+".json"), data, 0o644) //nolint:gosec // for everybody
}

// printSkips prints the reasons of skipped tests, most frequent first, and returns the number of tests.
func printSkips(w io.Writer, notes string) int {
	lines := slices.Compact(slices.Sorted(strings.Lines(notes)))
	byReason := map[string][]string{}
	for _, line := range lines {
		reason, test, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		byReason[reason] = append(byReason[reason], test)
	}
	fmt.Fprintf(w, "skipped: %d\n", len(lines))
	reasons := slices.SortedFunc(maps.Keys(byReason), func(a, b string) int {
		return cmp.Or(len(byReason[b])-len(byReason[a]), strings.Compare(a, b))
	})
	const most = 5
	for _, reason := range reasons {
		tests, more := byReason[reason], ""
		if len(tests) > most {
			tests, more = tests[:most], " ..."
		}
		fmt.Fprintf(w, "%4d  %s (%s%s)\n", len(byReason[reason]), reason, strings.Join(tests, ", "), more)
	}
	return len(lines)
}

// event is a line of "go test -json", see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
}

// outcome follows the events of "go test -json". The lines of a verbose layer begin with its name, since several print at
// once.
type outcome struct {
	w       io.Writer
	layer   string
	verbose bool
	broken  string // why tests alone do not explain the failure
	ran     int
	open    map[test]bool // tests that began; true once they failed
	output  map[test][]string
	failed  map[string]bool // packages
}

func newOutcome(w io.Writer, layer string, verbose bool) *outcome {
	return &outcome{w: w, layer: layer, verbose: verbose,
		open: map[test]bool{}, output: map[test][]string{}, failed: map[string]bool{}}
}

func (o *outcome) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				_, _ = o.w.Write(line) // not an event: for example a toolchain's message
			} else {
				o.event(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (o *outcome) event(e event) {
	top, _, _ := strings.Cut(e.Test, "/")
	t := test{e.Package, top}
	switch {
	case e.Action == "output" && e.Test != "" && !o.verbose:
		o.output[t] = append(o.output[t], e.Output)
	case e.Action == "output" && o.verbose:
		fmt.Fprintf(o.w, "%s: %s", o.layer, e.Output)
	case e.Action == "output" || e.Action == "build-output":
		fmt.Fprint(o.w, e.Output)
	case e.Action == "run" && e.Test == top:
		o.open[t] = false
	case e.Action == "build-fail":
		o.broken = e.ImportPath + " does not compile"
	case e.Action == "fail" && e.Test == "":
		o.failed[e.Package] = true
		for t, lines := range o.output { // of unfinished tests
			if t.Package == e.Package {
				fmt.Fprint(o.w, strings.Join(lines, ""))
			}
		}
	case e.Action == "fail":
		o.open[t] = true
	}
	if e.Test != top || e.Test == "" {
		return
	}
	switch e.Action {
	case "fail":
		fmt.Fprint(o.w, strings.Join(o.output[t], ""))
		o.ran++
	case "pass":
		o.ran++
		delete(o.open, t)
	case "skip":
		delete(o.open, t)
	default:
		return
	}
	delete(o.output, t)
}

// failures returns the tests that failed, or that had not ended when their package failed.
func (o *outcome) failures() []test {
	var failed []test
	for t, f := range o.open {
		if f || o.failed[t.Package] {
			failed = append(failed, t)
		}
	}
	for pkg := range o.failed {
		if !slices.ContainsFunc(failed, func(t test) bool { return t.Package == pkg }) && o.broken == "" {
			o.broken = pkg + " failed without a test"
		}
	}
	slices.SortFunc(failed, func(a, b test) int { return strings.Compare(a.Package+" "+a.Name, b.Package+" "+b.Name) })
	return failed
}
