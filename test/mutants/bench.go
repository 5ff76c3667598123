package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// result is the outcome of the tests without a guard.
type result string

const (
	noticed  result = "held"
	survived result = "SURVIVED" // all tests pass without it
	wrong    result = "WRONG"    // the entry, or the tests as they are
)

// bench builds tests side by side and runs them one at a time: they share the machine's mounts, cgroups and processes.
type bench struct {
	dir   string // for the tests' programs
	limit time.Duration

	running sync.Mutex
	mu      sync.Mutex                                   // of the maps
	built   map[string]func() (string, error)            // by package: the program of its tests, with all guards
	sound   map[string]func() (output string, err error) // by package and pattern: those tests, with all guards
}

// try removes one guard and runs its tests. The error explains wrong.
func (b *bench) try(ctx context.Context, m mutant) (result, error) {
	if output, err := b.baseline(ctx, m)(); err != nil {
		return wrong, fmt.Errorf("with the guard: %w\n%s", err, output)
	}
	dir, err := os.MkdirTemp(b.dir, "mutant")
	if err != nil {
		return wrong, err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return wrong, err
	}
	program := filepath.Join(dir, "test")
	if err := build(ctx, m.Package, program, "-overlay", overlay); err != nil {
		return wrong, err
	}
	_, err = b.run(ctx, program, m)
	var failed *exec.ExitError
	switch {
	case err == nil:
		return survived, nil
	case errors.As(err, &failed) && ctx.Err() == nil:
		return noticed, nil
	}
	return wrong, err
}

// baseline runs, once, the tests of an entry with all guards.
func (b *bench) baseline(ctx context.Context, m mutant) func() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	program, known := b.built[m.Package]
	if !known {
		file := filepath.Join(b.dir, fmt.Sprint(len(b.built)))
		program = sync.OnceValues(func() (string, error) { return file, build(ctx, m.Package, file) })
		b.built[m.Package] = program
	}
	key := m.Package + " " + m.Run
	if b.sound[key] == nil {
		b.sound[key] = sync.OnceValues(func() (string, error) {
			file, err := program()
			if err != nil {
				return "", err
			}
			output, err := b.run(ctx, file, m)
			if err == nil && !strings.Contains(output, "--- PASS") {
				err = fmt.Errorf("go test -run %q %s ran no test", m.Run, m.Package)
			}
			return output, err
		})
	}
	return b.sound[key]
}

// overlay writes the file without the guard, and the table that shows it to the compiler in the place of the real one.
func (m mutant) overlay(dir string) (table string, err error) {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return "", err
	}
	real, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{real: file}})
	if err != nil {
		return "", err
	}
	table = filepath.Join(dir, "overlay.json")
	return table, os.WriteFile(table, overlay, 0o600)
}

// build compiles the tests of a package into a program.
func build(ctx context.Context, pkg, program string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program}, flags...)
	output, err := exec.CommandContext(ctx, "go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -c %s: %w\n%s", pkg, err, output)
	}
	return nil
}

// run runs the tests of an entry in the folder of their package, as go test does.
func (b *bench) run(ctx context.Context, program string, m mutant) (string, error) {
	b.running.Lock()
	defer b.running.Unlock()
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.failfast", "-test.timeout", b.limit.String(),
		"-test.run", m.Run)
	cmd.Dir = m.Package
	output, err := cmd.CombinedOutput()
	return string(output), err
}
