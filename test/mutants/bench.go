package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// result is the outcome of the tests without a guard.
type result string

const (
	noticed  result = "held"
	survived result = "SURVIVED" // all tests pass without it
	wrong    result = "WRONG"    // the entry, or the tests as they are
)

// bench runs tests.
type bench struct {
	limit time.Duration
	sound map[string]error // by package and pattern: whether the tests pass with the guard
}

// try removes one guard. Problems of an entry go to standard error.
func (b *bench) try(ctx context.Context, m mutant) result {
	if err := b.baseline(ctx, m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return wrong
	}
	output, passed, err := b.test(ctx, m)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return wrong
	case passed:
		return survived
	case strings.Contains(output, "[build failed]") || strings.Contains(output, "[setup failed]"):
		fmt.Fprintln(os.Stderr, output)
		return wrong
	}
	return noticed
}

// baseline checks that the tests exist, run, and pass with the guard.
func (b *bench) baseline(ctx context.Context, m mutant) error {
	key := m.Package + " " + m.Run
	if err, known := b.sound[key]; known {
		return err
	}
	output, err := b.goTest(ctx, m)
	switch {
	case err != nil:
		err = fmt.Errorf("go test -run %q %s: %w\n%s", m.Run, m.Package, err, output)
	case strings.Contains(output, "no tests to run"), !strings.Contains(output, "--- PASS"):
		err = fmt.Errorf("go test -run %q %s ran no test", m.Run, m.Package)
	}
	b.sound[key] = err
	return err
}

// test runs the tests without the guard.
func (b *bench) test(ctx context.Context, m mutant) (output string, passed bool, err error) {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return "", false, err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", false, err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return "", false, err
	}
	real, err := filepath.Abs(m.File)
	if err != nil {
		return "", false, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{real: file}})
	if err != nil {
		return "", false, err
	}
	table := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(table, overlay, 0o600); err != nil {
		return "", false, err
	}
	output, err = b.goTest(ctx, m, "-overlay", table)
	return output, err == nil, nil
}

func (b *bench) goTest(ctx context.Context, m mutant, flags ...string) (string, error) {
	args := append([]string{"test", "-v", "-count=1", "-timeout", b.limit.String(), "-run", m.Run}, flags...)
	output, err := exec.CommandContext(ctx, "go", append(args, m.Package)...).CombinedOutput()
	return string(output), err
}
