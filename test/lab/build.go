package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// findRepo returns the checkout to build from: where, or the nearest one above the working directory.
func findRepo(where string) (string, error) {
	if where != "" {
		return where, nil
	}
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test/kubernetes/go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("no checkout of nodeagent above %s", start)
		}
	}
}

// buildHelpers builds the lab's own programs: the pause container's and the node proxy.
func (l *Lab) buildHelpers(ctx context.Context) error {
	for name, pkg := range map[string]string{"pause": "./test/lab/images/pause", "nodeproxy": "./test/lab/nodeproxy"} {
		if err := l.goBuild(ctx, l.state.Repo, filepath.Join(l.Dir, "bin", name), []string{pkg}, false); err != nil {
			return err
		}
	}
	return nil
}

// goBuild compiles programs, static ones without cgo, and reports progress every thirty seconds. It tries up to three
// times to download modules.
func (l progress) goBuild(ctx context.Context, module, out string, packages []string, cgo bool,
	flags ...string) (err error) {
	for range 3 {
		err = l.goBuildOnce(ctx, module, out, packages, cgo, flags...)
		if err == nil || !strings.Contains(err.Error(), `: Get "http`) || ctx.Err() != nil {
			return err
		}
		l.logf("  a download failed: %v", err)
	}
	return err
}

func (l progress) goBuildOnce(ctx context.Context, module, out string, packages []string, cgo bool,
	flags ...string) error {
	args := append([]string{"build", "-C", module, "-trimpath", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	// The compiler's own garbage collection would take a fifth of the processor time.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+map[bool]string{true: "1", false: "0"}[cgo], "GOWORK=off", "GOGC=400")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", filepath.Base(out), err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(30 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.logf("  still building %s", filepath.Base(out))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", filepath.Base(out), err, output.String())
			}
			return nil
		}
	}
}

// run executes a program of the host and returns its output; the error has its standard error.
func run(ctx context.Context, stdin string, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second // a grandchild may keep the pipe open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
