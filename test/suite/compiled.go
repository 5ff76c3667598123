package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// compilation is one call of the compiler.
type compilation struct {
	Package string            // with its test variant: "net/http [net/http.test]"
	Source  string            // the folder that -trimpath names, with the module's version
	Flags   []string          // those that change the compiled code
	Deps    map[string]string // import path to its compiled file, in the build cache
}

// record runs a program of the toolchain for "go build -toolexec" and notes each call of the compiler in the file.
func record(ctx context.Context, file string, argv []string) error {
	if filepath.Base(argv[0]) == "compile" && !slices.Contains(argv, "-V=full") {
		if err := note(file, os.Getenv("TOOLEXEC_IMPORTPATH"), argv[1:]); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // of the toolchain
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

func note(file, pkg string, args []string) error {
	c := compilation{Package: pkg, Deps: map[string]string{}}
	for i, arg := range args {
		switch {
		case arg == "-trimpath" && i+1 < len(args):
			c.Source = sourceOf(args[i+1])
		case arg == "-importcfg" && i+1 < len(args):
			if err := c.imports(args[i+1]); err != nil {
				return err
			}
		case arg == "-race" || arg == "-msan" || arg == "-asan" || strings.HasPrefix(arg, "-dwarf") ||
			strings.HasPrefix(arg, "-N") || arg == "-l" || strings.HasPrefix(arg, "-d="):
			c.Flags = append(c.Flags, arg)
		}
	}
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // of the run
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return cmp.Or(err, f.Close())
}

// sourceOf returns the module and version that the compiler is to write in place of the folder of a package.
func sourceOf(trimpath string) string {
	for rewrite := range strings.SplitSeq(trimpath, ";") {
		if _, source, _ := strings.Cut(rewrite, "=>"); source != "" {
			return source
		}
	}
	return ""
}

// imports reads the files of the dependencies.
func (c *compilation) imports(importcfg string) error {
	data, err := os.ReadFile(importcfg) //nolint:gosec // of the build
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if dep, isFile := strings.CutPrefix(strings.TrimSpace(line), "packagefile "); isFile {
			path, file, _ := strings.Cut(dep, "=")
			c.Deps[path] = filepath.Base(file)
		}
	}
	return nil
}

// cached is the name of a file in the build cache; others are in a folder of the build, and differ each time.
var cached = regexp.MustCompile(`^[0-9a-f]{64}-d$`)

// printCompiled prints which packages were compiled more than once, and why; the biggest causes first.
func printCompiled(w io.Writer, file string) error {
	f, err := os.Open(file) //nolint:gosec // of the run
	if err != nil {
		return err
	}
	defer f.Close()
	byPackage := map[string][]compilation{}
	all := 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var c compilation
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		byPackage[c.Package] = append(byPackage[c.Package], c)
		all++
	}
	if err := lines.Err(); err != nil {
		return err
	}
	why := map[string][]string{}
	more := 0
	for pkg, all := range byPackage {
		for i, c := range all[1:] {
			more++
			reason := because(all[i], c, byPackage)
			why[reason] = append(why[reason], pkg)
		}
	}
	fmt.Fprintf(w, "%d compilations of %d packages, %d of them again:\n", all, len(byPackage), more)
	reasons := slices.SortedFunc(maps.Keys(why), func(a, b string) int {
		return cmp.Or(len(why[b])-len(why[a]), strings.Compare(a, b))
	})
	for _, reason := range reasons {
		packages := why[reason]
		slices.Sort(packages)
		const most = 4
		fmt.Fprintf(w, "%5d  %s: %s%s\n", len(packages), reason, strings.Join(packages[:min(most, len(packages))], ", "),
			map[bool]string{true: " ..."}[len(packages) > most])
	}
	return nil
}

// because names the cause of a second compilation: its own flags or source, or else those of the dependencies that
// differ although their own flags and sources do not.
func because(a, b compilation, all map[string][]compilation) string {
	switch {
	case !slices.Equal(a.Flags, b.Flags):
		return fmt.Sprintf("flags %q and %q", strings.Join(a.Flags, " "), strings.Join(b.Flags, " "))
	case a.Source != b.Source:
		return fmt.Sprintf("source %s and %s", a.Source, b.Source)
	}
	var roots []string
	for dep, file := range b.Deps {
		if was, had := a.Deps[dep]; !had || was != file && cached.MatchString(was) && cached.MatchString(file) {
			if root := rootCause(dep, all, map[string]bool{}); root != "" {
				roots = append(roots, root)
			}
		}
	}
	if len(roots) == 0 {
		return "cgo, tags or an unknown flag"
	}
	slices.Sort(roots)
	return "depends on " + slices.Compact(roots)[0]
}

// rootCause names a package below dep whose own source or flags differ.
func rootCause(dep string, all map[string][]compilation, seen map[string]bool) string {
	if seen[dep] {
		return ""
	}
	seen[dep] = true
	compilations := all[dep]
	if len(compilations) < 2 {
		return ""
	}
	first, last := compilations[0], compilations[len(compilations)-1]
	if first.Source != last.Source {
		return first.Source + " and " + last.Source
	}
	for _, next := range slices.Sorted(maps.Keys(last.Deps)) {
		if root := rootCause(next, all, seen); root != "" {
			return root
		}
	}
	if !slices.Equal(first.Flags, last.Flags) {
		return fmt.Sprintf("%s with flags %q and %q", dep, first.Flags, last.Flags)
	}
	return ""
}
