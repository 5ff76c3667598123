// Command newcheck creates a new check that works, to be completed:
//
//	go run ./test/newcheck disk-glitter storage      (or: make new-check ID=disk-glitter DOMAIN=storage)
//
// It writes the check's file and its fixtures, adds its line to the list of checks, and
// regenerates the generated files. An invalid check is rejected before anything is written. Exit status: 0 created, 1
// not.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, ".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "new-check:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: make new-check ID=disk-glitter DOMAIN=storage")
	}
	changed, err := plan(root, args[0], args[1])
	if err != nil {
		return err
	}
	for _, f := range changed {
		if err := f.write(root); err != nil {
			return err
		}
		fmt.Println(f.does, f.name)
	}
	if err := generate(ctx, root); err != nil {
		return err
	}
	fmt.Printf("\nNext: replace each TODO in %s and its fixtures; CONTRIBUTING.md, \"Add a check\".\n", changed[0].name)
	return nil
}

// A change is one file, created or with a line added.
type change struct {
	does string // made, or added a line to
	name string
	text string
}

func (c change) write(root string) error {
	name := filepath.Join(root, c.name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(c.text), 0o644)
}

const (
	checksPage = "docs/checks.md"
	schemaFile = "packaging/kubernetes/chart/values.schema.json"
)

// generate regenerates what depends on the list of checks.
func generate(ctx context.Context, root string) error {
	if _, err := goTool(ctx, root, "test", "-count=1", "-run", "^TestDocs$", "./cmd/nodeagent", "-update"); err != nil {
		return fmt.Errorf("%s: %w", checksPage, err)
	}
	schema, err := goTool(ctx, root, "run", "./packaging/kubernetes/schema")
	if err != nil {
		return fmt.Errorf("%s: %w", schemaFile, err)
	}
	for _, c := range []change{{"generated", checksPage, ""}, {"generated", schemaFile, string(schema)}} {
		if c.text != "" {
			if err := c.write(root); err != nil {
				return err
			}
		}
		fmt.Println(c.does, c.name)
	}
	return nil
}

// goTool runs the go command and returns its output.
func goTool(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", slices.Clip(args), err, out)
	}
	return out, nil
}
