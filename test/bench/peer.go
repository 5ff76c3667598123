package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/test/harness"
)

// startFullPeer runs node-problem-detector with its monitors of the kernel's log, of disks, of the network and of
// iptables, as it ships them.
func (b *bench) startFullPeer(ctx context.Context, command, dir string) (process, error) {
	repo, err := harness.Repo()
	if err != nil {
		return process{}, err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/node-problem-detector")
	list.Dir = filepath.Join(repo, "test/peers")
	module, err := list.Output()
	if err != nil {
		return process{}, err
	}
	config := filepath.Join(dir, "config")
	if err := os.RemoveAll(config); err != nil {
		return process{}, err
	}
	if err := os.CopyFS(config, os.DirFS(filepath.Join(strings.TrimSpace(string(module)), "config"))); err != nil {
		return process{}, err
	}
	plugins, err := filepath.Glob(filepath.Join(config, "plugin/*.sh"))
	for _, plugin := range plugins { // modules do not keep file modes
		if err := os.Chmod(plugin, 0o755); err != nil { //nolint:gosec // it is run
			return process{}, err
		}
	}
	if err != nil {
		return process{}, err
	}
	cmd := exec.CommandContext(ctx, command,
		"--config.system-log-monitor=config/kernel-monitor.json,config/readonly-monitor.json",
		"--config.custom-plugin-monitor=config/network-problem-monitor.json,config/iptables-mode-monitor.json",
		"--hostname-override="+b.lab.NodeName,
		"--apiserver-override="+b.lab.Server()+"?inClusterConfig=false&auth="+b.lab.Paths.AdminKubeconfig,
		"--port=0", "--prometheus-port=0")
	cmd.Dir = dir
	return process{cmd}, cmd.Start()
}
