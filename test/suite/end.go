package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// end reruns the tests that failed, prints the table of all layers, and reports whether all is green. It ignores layers
// that failed: make knows about them.
func end(ctx context.Context, folder string, stdout, stderr io.Writer) (green bool, err error) {
	results, err := load(folder)
	if err != nil {
		return false, err
	}
	flaky, red := []string(nil), []string(nil)
	for _, r := range results {
		for _, failed := range r.Failed {
			name := fmt.Sprintf("%s %s of %s", strings.TrimPrefix(failed.Package, module), failed.Name, r.Layer.Name)
			fmt.Fprintf(stderr, "again: %s\n", name)
			again, err := r.Layer.again(failed).run(ctx, stdout, stderr)
			if err != nil {
				return false, err
			}
			if again.Exit == 0 && again.Tests == 1 {
				flaky = append(flaky, name)
			} else {
				red = append(red, name)
			}
		}
	}
	table(stdout, results)
	for _, name := range red {
		fmt.Fprintf(stdout, "failed twice: %s\n", name)
	}
	for _, name := range flaky {
		fmt.Fprintf(stdout, "flaky: %s failed, and passed alone; test/flaky.txt must have it by the next commit\n", name)
	}
	return len(red) == 0, nil
}

// again returns the layer with one test alone.
func (l layer) again(t test) layer {
	argv, own, rest := []string{}, []string{}, l.Command
	if i := slices.Index(rest, "-args"); i >= 0 {
		rest, own = rest[:i], rest[i:]
	}
	for i := 0; i < len(rest); i++ {
		switch {
		case rest[i] == "-run" || rest[i] == "-skip" || rest[i] == "-p" || rest[i] == "-shuffle":
			i++
		case strings.HasPrefix(rest[i], "./") || strings.HasPrefix(rest[i], module) ||
			strings.HasPrefix(rest[i], "-shuffle="):
		default:
			argv = append(argv, rest[i])
		}
	}
	argv = append(argv, "-run", "^"+t.Name+"$", t.Package)
	return layer{Name: l.Name, Command: append(argv, own...), Path: l.Path}
}

func load(folder string) ([]result, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	results := make([]result, len(files))
	for i, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // of this run
		if err == nil {
			err = json.Unmarshal(data, &results[i])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	slices.SortStableFunc(results, func(a, b result) int { return int(b.CPU - a.CPU) })
	return results, nil
}

// table prints a row for each layer, and their sum. Layers run side by side: the wall times add up to more than the
// run's.
func table(w io.Writer, results []result) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(columns, "layer\twall s\tprocessor s\ttests\tskipped\t")
	var sum result
	row := func(name string, r result) {
		fmt.Fprintf(columns, "%s\t%.0f\t%.0f\t%d\t%d\t\n", name, r.Wall.Seconds(), r.CPU.Seconds(), r.Tests, r.Skipped)
	}
	for _, r := range results {
		row(r.Layer.Name, r)
		sum.Wall, sum.CPU = sum.Wall+r.Wall.Round(time.Millisecond), sum.CPU+r.CPU
		sum.Tests, sum.Skipped = sum.Tests+r.Tests, sum.Skipped+r.Skipped
	}
	row("all", sum)
	_ = columns.Flush()
}
