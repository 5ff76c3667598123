package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

func newConfig(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the defaults, validate a configuration, show the one in force",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printConfig(cmd, o, config.Default())
		},
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "defaults",
			Short: "Print the default configuration",
			Args:  cobra.NoArgs,
			RunE:  cmd.RunE,
		},
		&cobra.Command{
			Use:   "validate [FILE]",
			Short: "Validate a configuration file, the files and programs that it names: errors with file and line",
			Long: `Validate a configuration file, the files and programs that it names: errors with file and line.

Exit codes: 0 valid; 1 it has errors; 2 the file could not be read.`,
			Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				file := o.file(cmd.Context())
				if len(args) == 1 {
					file = args[0]
				}
				name, data, err := config.Read(file)
				if err != nil {
					return err
				}
				cfg, err := config.Parse(name, data)
				if err != nil {
					return &exitError{Code: exitProblems, Err: err}
				}
				for _, ignored := range append(cfg.Ignored(), config.ReadMonitors(cfg.NodeProblemDetector).Ignored()...) {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning:", ignored)
				}
				if err := config.Verify(file); err != nil {
					return &exitError{Code: exitProblems, Err: err}
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
				return err
			},
		},
		&cobra.Command{
			Use:   "show",
			Short: "Print the configuration in force, with what was discovered on this host",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := o.load(cmd.Context())
				if err != nil {
					return err
				}
				clients, err := agent.OpenHost(cfg, quiet())
				if err != nil {
					return err
				}
				defer clients.Close()
				cfg.Paths, cfg.NodeName = clients.Host.Paths, clients.Host.NodeName
				for _, note := range clients.Notes {
					fmt.Fprintln(cmd.ErrOrStderr(), "#", note)
				}
				return printConfig(cmd, o, cfg)
			},
		},
	)
	return cmd
}

func printConfig(cmd *cobra.Command, o *options, cfg config.Config) error {
	text, err := cfg.YAML()
	if err == nil && o.json() {
		text, err = yaml.YAMLToJSON(text)
	}
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}
