package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/capture"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
)

func newCapture(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "capture [FILE]",
		Short: "Write one file for support: evidence, status, findings, kernel log, units, mounts, versions",
		Long: `Write one file for support, a compressed tar archive. It contains

  inspection.json.gz   the evidence of an inspection: nodeagent inspect --from reads it
  status.json          what the running agent believes
  check.json           what one run of the checks finds
  kernel.log           the last lines of the kernel's log
  units.json           the units of systemd that run or have failed
  versions.json        versions of agent, kernel, system, runtime, kubelet
  mounts.txt           the mount table
  config.yaml          the agent's configuration
  manifest.json        the parts that are missing or cut, and why

If a part hangs or cannot be read, only this part is missing; the command takes at most half a minute. It removes
passwords, tokens, keys and certificates. Names of pods, namespaces and nodes stay, and so do paths and addresses: read
the file before you pass it on. The default FILE is nodeagent-capture-TIME.tar.gz in this directory; - writes to
standard output, for kubectl exec. The command does not overwrite an existing file.

Exit codes: 0 all parts were read; 2 some were not, or the file could not be written.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "nodeagent-capture-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			if len(args) == 1 {
				name = args[0]
			}
			return captureTo(cmd, o, name)
		},
	}
}

// toStdout is the file name that stands for standard output.
const toStdout = "-"

func captureTo(cmd *cobra.Command, o *options, name string) error {
	if name == toStdout && o.json() {
		return fmt.Errorf("capture %s: standard output is either the file or JSON", toStdout)
	}
	if _, err := os.Lstat(name); name != toStdout && err == nil {
		return fmt.Errorf("%s exists already and is not overwritten", name) // before anything is read
	}
	file, manifest, err := capture.Collect(cmd.Context(), agent.Version, newCaptured(cmd.Context(), o).parts(),
		capture.DefaultLimits())
	if err != nil {
		return err
	}
	answer := cmd.OutOrStdout()
	if name == toStdout {
		answer = cmd.ErrOrStderr()
		_, err = cmd.OutOrStdout().Write(file)
	} else {
		err = bundle.WriteNew(name, file)
	}
	if err != nil {
		return err
	}
	var exit error
	if len(manifest.Failed()) > 0 {
		exit = &exitError{Code: exitCouldNotTell}
	}
	return o.answer(answer, map[string]any{"file": name, "manifest": manifest}, func(w io.Writer) error {
		printManifest(w, name, len(file), manifest)
		return nil
	}, exit)
}

// printManifest lists the written parts and the missing ones.
func printManifest(w io.Writer, name string, size int, m capture.Manifest) {
	missing := m.Failed()
	fmt.Fprintf(w, "wrote %s: %d bytes, %d of %d parts\n", name, size, len(m.Members)-len(missing), len(m.Members))
	for _, m := range missing {
		fmt.Fprintf(w, "  no %s: %s\n", m.Name, oneLine(m.Error))
	}
}

// captured holds data that several parts need; the first part to ask reads it. The clients stay open until the process
// ends, because a part that hangs may still use them.
type captured struct {
	config  func() (config.Config, error)
	clients func() (*agent.Clients, error)
}

func newCaptured(ctx context.Context, o *options) captured {
	var c captured
	c.config = sync.OnceValues(func() (config.Config, error) { return o.load(ctx) })
	c.clients = sync.OnceValues(func() (*agent.Clients, error) { return agent.OpenHost(c.valid(), quiet()) })
	return c
}

// valid returns the configuration, or the default one if it is invalid.
func (c captured) valid() config.Config {
	cfg, err := c.config()
	if err != nil {
		return config.Default()
	}
	return cfg
}

// Time limits of the parts. An inspection takes 15 s at most, and so do the checks.
const (
	quickPart   = 10 * time.Second
	slowPart    = 20 * time.Second
	kernelLines = 5000
)

func (c captured) parts() []capture.Part {
	return []capture.Part{
		{Name: "inspection.json.gz", Form: capture.Raw, Limit: slowPart, Read: c.inspection},
		{Name: "status.json", Form: capture.JSON, Limit: quickPart, Read: func(ctx context.Context) ([]byte, error) {
			s, err := status.AskStatus(ctx, c.valid().Socket)
			return asJSON(s, err)
		}},
		{Name: "check.json", Form: capture.JSON, Limit: slowPart, Read: c.checks},
		{Name: "kernel.log", Limit: quickPart, Read: c.ofHost(func(ctx context.Context, h *host.Host) ([]byte, error) {
			return capture.KernelLog(ctx, h, kernelLines)
		})},
		{Name: "units.json", Form: capture.JSON, Limit: quickPart, Read: c.ofHost(capture.Units)},
		{Name: "versions.json", Form: capture.JSON, Limit: quickPart,
			Read: c.ofHost(func(ctx context.Context, h *host.Host) ([]byte, error) {
				return capture.Versions(ctx, h, agent.Version)
			})},
		{Name: "mounts.txt", Limit: quickPart, Read: c.ofHost(capture.Mounts)},
		{Name: "config.yaml", Limit: quickPart, Read: func(context.Context) ([]byte, error) {
			cfg, err := c.config()
			if err != nil {
				return nil, err
			}
			return withoutArguments(cfg).YAML()
		}},
	}
}

func (c captured) ofHost(read func(context.Context, *host.Host) ([]byte, error)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		d, err := c.clients()
		if err != nil {
			return nil, err
		}
		return read(ctx, d.Host)
	}
}

func (c captured) inspection(ctx context.Context) ([]byte, error) {
	i, err := inspectNode(ctx, func(context.Context) (config.Config, error) { return c.valid(), nil }, nil)
	if err != nil {
		return nil, err
	}
	return i.encode(false)
}

func (c captured) checks(ctx context.Context) ([]byte, error) {
	d, err := c.clients()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, fmt.Errorf("no answer within %s", checkLimit))
	defer cancel()
	deps := d.Deps(nil)
	checks := agent.Checks(c.valid(), d.Host, deps)
	deps.Sources.Enable(checks)
	return asJSON(summarize(detect.RunOnce(ctx, d.Host, checks, deps.Sources.Observe)), nil)
}

// withoutArguments returns a configuration without the arguments of plugin programs: the only texts in it that may be
// secrets.
func withoutArguments(cfg config.Config) config.Config {
	cfg.Plugins = slices.Clone(cfg.Plugins)
	for i := range cfg.Plugins {
		if n := len(cfg.Plugins[i].Args); n > 0 {
			cfg.Plugins[i].Args = []string{fmt.Sprintf("[removed: %d arguments]", n)}
		}
	}
	return cfg
}

func asJSON(v any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
