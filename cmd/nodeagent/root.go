package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

// options are the flags that every verb has.
type options struct {
	configFile string
	output     string

	containers map[string]status.ContainerPaths // by socket: an agent that hangs is asked once
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "nodeagent",
		Short: "Find node faults and leftovers of deleted pods, repair them if possible, and report",
		Long: `nodeagent finds faults of this node and leftovers of deleted pods.

  nodeagent check      what is wrong with this node now?
  nodeagent inspect    what did deleted pods leave behind, and what proves it?
  nodeagent inspect pod NAMESPACE/NAME   why is this pod stuck?
  nodeagent clean      which leftovers can be released? (asks on a terminal; --yes releases them)
  nodeagent events     what was released here, and how did it end?
  nodeagent status     what does the running agent believe?
  nodeagent explain    what does a check read, and what should you do?
  nodeagent capture    all of this in one file, for support

Exit codes: 0 fine, 1 problems found, 2 could not tell.`,
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: func(*cobra.Command, []string) error { return o.Validate() },
	}
	root.PersistentFlags().StringVarP(&o.configFile, "config", "c", "", "configuration file (default "+
		config.DefaultFile+" if it exists)")
	root.PersistentFlags().StringVarP(&o.output, "output", "o", "text", "output format: text or json")
	root.AddCommand(
		newRun(o), newCheck(o), newInspect(o), newClean(o), newStatus(o), newReady(o), newReload(o), newRetire(o), newEvents(o),
		newConfig(o), newReplay(o), newExplain(o), newCapture(o), newVersion(o),
	)
	addManual(root)
	armFaultpoints(root)
	return root
}

// load reads the configuration that the flags name, strictly. If the agent of a container runs on this host, its
// credentials are used: the host has none but kubelet's.
func (o *options) load(ctx context.Context) (config.Config, error) {
	cfg, err := config.Load(o.file(ctx))
	if err == nil && cfg.Paths.Kubeconfig == "" {
		container := o.container(ctx, cfg.Socket)
		cfg.ServiceAccountDir, cfg.ServiceAddress = container.ServiceAccount, container.Apiserver
	}
	return cfg, err
}

// file returns the configuration file: the one that is named, else the host's, else that of the agent of a container
// that runs on this host.
func (o *options) file(ctx context.Context) string {
	if o.configFile != "" || ifExists(config.DefaultFile) != "" {
		return o.configFile
	}
	return o.container(ctx, config.Default().Socket).Config
}

// container returns the paths of the agent of a container; all are empty if none runs.
func (o *options) container(ctx context.Context, socket string) status.ContainerPaths {
	paths, asked := o.containers[socket]
	if !asked {
		paths = status.AskContainerPaths(ctx, socket)
		if o.containers == nil {
			o.containers = map[string]status.ContainerPaths{}
		}
		o.containers[socket] = paths
	}
	return paths
}

// Validate returns the error in the flags.
func (o *options) Validate() error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output %q: must be text or json", o.output)
	}
	return nil
}

func (o *options) json() bool { return o.output == "json" }

// answer prints a value as JSON or for people, and returns the exit code of the verb.
func (o *options) answer(w io.Writer, value any, forPeople func(io.Writer) error, exit error) error {
	if o.json() {
		forPeople = func(w io.Writer) error { return printJSON(w, value) }
	}
	if err := forPeople(w); err != nil {
		return err
	}
	return exit
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
