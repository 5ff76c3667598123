package main

import (
	"cmp"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/daemon"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
)

// runFlags describe the environment of the daemon; its behaviour is in the configuration file. Values on which a pod's
// specification depends (the address of probes, the host that is entered) must hold even if the configuration is
// refused.
type runFlags struct {
	nodeName       string
	serviceAccount string // directory of the pod's token
	enterHost      bool   // started in a container: leave it
	enteredHost    bool   // set by the agent itself when it has left it
	lastGood       string // keeps the last configuration that the agent worked with
	listen         string // where metrics and kubelet's probes are answered
	initPID        int    // the process that stands for the host
}

func newRun(o *options) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			if f.enterHost {
				cfg, err := o.load(cmd.Context())
				if err != nil && f.lastGood == "" {
					return err
				}
				return f.enter(o.configFile, f.over(cfg)) // the process on the host reports the error
			}
			if f.enteredHost {
				f.entered(o.configFile, log)
			}
			reload := make(chan os.Signal, 1) // one pending signal is enough: the file is read after it
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			source := daemon.Source{File: o.configFile, LastGood: f.lastGood, Over: f.over, Reload: reload}
			return daemon.Run(cmd.Context(), source, log)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.nodeName, "node-name", "", "Node object of this machine (default: the configuration's, or "+
		"kubelet's)")
	flags.StringVar(&f.serviceAccount, "service-account", "",
		"directory with token and ca.crt (default: the one in a pod)")
	flags.BoolVar(&f.enterHost, "enter-host", false, "for containers: enter the namespaces of the host first")
	flags.BoolVar(&f.enteredHost, "entered-host", false, "")
	flags.StringVar(&f.lastGood, "last-good", "", `file that keeps the last good configuration. With it the agent always
starts: if its configuration is invalid, with the last good one or the
defaults, and without releases. Without it, an invalid configuration
prevents the start`)
	flags.StringVar(&f.listen, "listen", "", "loopback address of metrics and probes (default: the configuration's)")
	flags.IntVar(&f.initPID, "init-pid", 0,
		"process whose namespaces are the host's (default: the configuration's, or 1)")
	_ = flags.MarkHidden("entered-host") // the flag exists
	return cmd
}

// over returns cfg with the flags applied.
func (f runFlags) over(cfg config.Config) config.Config {
	cfg.NodeName = cmp.Or(f.nodeName, cfg.NodeName)
	cfg.Report.Metrics.Listen = cmp.Or(f.listen, cfg.Report.Metrics.Listen)
	cfg.Paths.InitPID = cmp.Or(f.initPID, cfg.Paths.InitPID)
	cfg.ServiceAccountDir, cfg.FromContainer = f.serviceAccount, f.enteredHost
	return cfg
}
