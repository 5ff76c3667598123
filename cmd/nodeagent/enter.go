package main

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/hostns"
	"github.com/nodeagent/nodeagent/internal/kube"
)

// enter leaves the container and executes this command again on the host. It returns only if that failed.
func (f runFlags) enter(configFile string, cfg config.Config) error {
	if configFile == "" {
		configFile = ifExists(config.DefaultFile)
	}
	serviceAccount := ifExists(cmp.Or(f.serviceAccount, kube.DefaultServiceAccountDir))
	return hostns.Entry{
		InitPID: cfg.Paths.InitPID, Keep: []string{directory(configFile), serviceAccount},
		Args: func(kept []string) []string {
			file := os.DevNull // the defaults, not a file of the host
			if kept[0] != "" {
				file = filepath.Join(kept[0], filepath.Base(configFile))
			}
			return []string{
				"run", "--entered-host", "--config=" + file, "--service-account=" + kept[1], "--node-name=" +
					f.nodeName,
				"--last-good=" + f.lastGood, "--listen=" + f.listen, "--init-pid=" + strconv.Itoa(f.initPID),
			}
		},
	}.Enter()
}

// entered is the start on the host.
func (f runFlags) entered(configFile string, log *slog.Logger) {
	if err := hostns.Entered(directory(configFile), f.serviceAccount); err != nil {
		log.Warn("the container's configuration or credentials may not be readable", "err", err)
	}
}

func ifExists(path string) string {
	if _, err := os.Stat(path); os.IsNotExist(err) {
		return ""
	}
	return path
}

// directory returns the directory of a configuration file; empty for an empty name.
func directory(file string) string {
	if file == "" || file == os.DevNull {
		return ""
	}
	return filepath.Dir(file)
}
