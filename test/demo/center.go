package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/test/harness"
)

// center is an event center or a tracecenter with few settings, on this machine's loopback.
type center struct {
	name, binary, dir string
	cmd               *exec.Cmd
}

// keptDir returns the directory of all that remains of the demo, for inspection.
func keptDir() (repo, kept string, err error) {
	repo, err = harness.Repo()
	return repo, filepath.Join(repo, ".cache", "demo"), err
}

// startCenter starts an event center in an empty directory.
func (s *stage) startCenter(ctx context.Context) (*center, error) {
	_, kept, err := keptDir()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(kept), os.MkdirAll(kept, 0o700)); err != nil {
		return nil, err
	}
	return startProgram(ctx, "eventcenter")
}

// startProgram builds and starts a program.
func startProgram(ctx context.Context, name string, flags ...string) (*center, error) {
	repo, kept, err := keptDir()
	if err != nil {
		return nil, err
	}
	c := &center{name: name, binary: filepath.Join(kept, name), dir: filepath.Join(kept, name+"-data")}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", c.binary, "./cmd/"+name)
	build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	c.cmd = exec.CommandContext(ctx, c.binary, append([]string{"serve", "--dir", c.dir, "--listen", "127.0.0.1:0"}, flags...)...)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, harness.WaitFor(ctx, name, func() error {
		_, err := c.address()
		return err
	})
}

func (c *center) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// address returns the center's address, which it writes beside its token.
func (c *center) address() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "address"))
	if err == nil && len(text) == 0 {
		err = errors.New("no address yet")
	}
	return strings.TrimSpace(string(text)), err
}

// settings returns the settings with which an agent sends events to it.
func (c *center) settings() (harness.Overrides, error) {
	address, err := c.address()
	return harness.Overrides{"report": map[string]any{"eventCenter": map[string]any{
		"endpoints": []string{address + "/v1/events"}, "cluster": "demo", "tokenFile": filepath.Join(c.dir, "token"),
	}}}, err
}

// showCenter shows the events at the center: the fault and its end, the leftovers and their release.
func (s *stage) showCenter(ctx context.Context) error {
	s.title("8. The event center has all of it")
	show := []string{"events", "--dir", s.center.dir, "--limit", "1000", "--check", "filesystem-readonly", "--check",
		"leftovers"}
	err := harness.WaitFor(ctx, "the events to arrive", func() error {
		out, err := exec.CommandContext(ctx, s.center.binary, show...).CombinedOutput()
		for _, want := range []string{"fault.raised", "fault.cleared", "leftover.found", "leftover.gone"} {
			if err == nil && !strings.Contains(string(out), want) {
				err = fmt.Errorf("no %s", want)
			}
		}
		return err
	})
	s.command(ctx, s.center.binary, "nodes", "--dir", s.center.dir)
	s.command(ctx, s.center.binary, show...)
	return err
}

// printURL ends the demo with the addresses of the pages.
func (c *center) printURL() {
	binary, dir := c.binary, c.dir
	if here, err := os.Getwd(); err == nil {
		for _, name := range []*string{&binary, &dir} {
			if short, err := filepath.Rel(here, *name); err == nil {
				*name = short
			}
		}
	}
	fmt.Printf(`
The event center's data is kept. In a browser it shows the fault, its end, the leftovers and their release:
    %[1]s serve --dir %[2]s &
    %[1]s login --dir %[2]s     # prints the page and a code; choose the node there, /nodes/demo/lab-node
`, binary, dir)
}
