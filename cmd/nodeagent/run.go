package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent/daemon"
	"github.com/nodeagent/nodeagent/internal/config"
)

// runFlags say where the daemon is. How it behaves is in the configuration file. What a pod's specification and the
// configuration both rest on (where kubelet asks, which host is entered) holds whatever becomes of the configuration.
type runFlags struct {
	nodeName       string
	serviceAccount string // directory of the pod's token
	enterHost      bool   // started in a container: leave it
	enteredHost    bool   // set by itself when it has left it
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
				return f.enter(o.configFile, f.over(cfg)) // whoever starts there says what is wrong with it
			}
			if f.enteredHost {
				f.arrive(o.configFile, log)
			}
			reload := make(chan os.Signal, 1) // one wish is enough: the file is read after it
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			source := daemon.Source{File: o.configFile, LastGood: f.lastGood, Over: f.over, Reload: reload}
			return daemon.Run(cmd.Context(), source, log)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.nodeName, "node-name", "", "Node object of this machine (default: the configuration's, or "+
		"what kubelet says)")
	flags.StringVar(&f.serviceAccount, "service-account", "",
		"directory with token and ca.crt (default: where a pod has them)")
	flags.BoolVar(&f.enterHost, "enter-host", false, "for containers: enter the namespaces of the host first")
	flags.BoolVar(&f.enteredHost, "entered-host", false, "")
	flags.StringVar(&f.lastGood, "last-good", "", `file that keeps the last good configuration. With it the agent starts in any case: when its configuration
is wrong, with the last good one or the defaults, releasing nothing and saying so. Without it, nothing is started then`)
	flags.StringVar(&f.listen, "listen", "", "loopback address of metrics and probes (default: the configuration's)")
	flags.IntVar(&f.initPID, "init-pid", 0,
		"process whose namespaces are the host's (default: the configuration's, or 1)")
	_ = flags.MarkHidden("entered-host") // the flag exists
	return cmd
}

// over returns cfg with what the flags say.
func (f runFlags) over(cfg config.Config) config.Config {
	if f.nodeName != "" {
		cfg.NodeName = f.nodeName
	}
	if f.listen != "" {
		cfg.Report.Metrics.Listen = f.listen
	}
	if f.initPID != 0 {
		cfg.Paths.InitPID = f.initPID
	}
	cfg.ServiceAccountDir, cfg.FromContainer = f.serviceAccount, f.enteredHost
	return cfg
}
