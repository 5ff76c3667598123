package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

func newReload(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration of the running agent",
		Long: `Reload the configuration of the running agent, and wait for the outcome.

All or nothing: the agent refuses an invalid configuration, names each error, and keeps the configuration in force.
A change of stateDir or socket needs a restart. SIGHUP to the agent has the same effect, but prints no answer.

Exit code 1 if the configuration is refused, 2 if the agent did not answer.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := status.AskReload(cmd.Context(), o.socket(cmd.Context()))
			if errors.Is(err, status.ErrRefused) {
				return &exitError{Code: exitProblems, Err: err}
			}
			if err != nil {
				_, invalid := config.Load(o.file(cmd.Context()))
				return errors.Join(err, invalid) // an invalid file may name another socket
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is in force")
			return err
		},
	}
}

// socket is where the running agent answers. If the configuration file is invalid, only this key is read.
func (o *options) socket(ctx context.Context) string {
	cfg, err := config.Load(o.file(ctx))
	if err == nil {
		return cfg.Socket
	}
	var only struct {
		Socket string `yaml:"socket"`
	}
	if _, data, read := config.Read(o.file(ctx)); read == nil && yaml.Unmarshal(data, &only) == nil && only.Socket != "" {
		return only.Socket
	}
	return config.Default().Socket
}
