package mutate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// pluginExec runs CNI plugins for libcni. libcni's own runner would wait forever for a plugin that hangs in the kernel,
// or whose children keep its pipes open.
type pluginExec struct {
	mutator *Mutator
	version.PluginDecoder
}

var _ invoke.Exec = (*pluginExec)(nil)

// FindInPath finds a plugin in the configured directories, which must be absolute.
func (e *pluginExec) FindInPath(plugin string, dirs []string) (string, error) {
	absolute := slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return !path.IsAbs(dir) })
	return invoke.FindInPath(plugin, absolute)
}

// pluginsOf makes sure that all plugins of a network are there and may be run, before the first of them is: a DEL that ends
// in the middle has undone a part.
func (d *Mutator) pluginsOf(list *libcni.NetworkConfigList) error {
	for _, plugin := range list.Plugins {
		names := []string{plugin.Network.Type}
		if of := plugin.Network.IPAM.Type; of != "" {
			names = append(names, of)
		}
		for _, name := range names {
			if err := d.mayRunPlugin(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Mutator) mayRunPlugin(name string) error {
	file, err := (&pluginExec{mutator: d}).FindInPath(name, d.host.Paths.CNIBinDirs)
	if err != nil {
		return err
	}
	if err := owned.Program(file); err != nil {
		return fmt.Errorf("plugin %s is not run: %w", name, err)
	}
	return nil
}

// ExecPlugin runs a plugin with the environment that libcni prepared.
func (e *pluginExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	if !slices.Contains(e.mutator.host.Paths.CNIBinDirs, path.Dir(plugin)) {
		return nil, refuse("plugin %s is not in a configured directory", plugin)
	}
	// An error and not a Refusal, so that DEL is tried again.
	if err := owned.Program(plugin); err != nil {
		return nil, fmt.Errorf("plugin %s is not run: %w", path.Base(plugin), err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pluginLimit, fmt.Errorf("plugin %s took longer than %s",
		path.Base(plugin), pluginLimit))
	defer cancel()
	output, err := e.mutator.plugins.run(ctx, &exec.Cmd{Path: plugin, Args: []string{plugin}, Env: environ, Dir: "/",
		Stdin: bytes.NewReader(stdin)})
	if err == nil {
		return output, nil
	}
	// A plugin reports its error on standard output.
	refusal := &types.Error{}
	if json.Unmarshal(output, refusal) == nil && refusal.Msg != "" {
		return nil, refusal
	}
	return nil, fmt.Errorf("plugin %s: %w", path.Base(plugin), err)
}
