package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// peerConfig is node-problem-detector's readonly-monitor.json as shipped, but for lookback: five minutes would make it
// report the failure of the trial before.
const peerConfig = `{
  "plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "1s", "bufferSize": 10, "source": "readonly-monitor", "metricsReporting": true,
  "conditions": [{"type": "ReadonlyFilesystem", "reason": "FilesystemIsNotReadOnly", "message": "Filesystem is not read-only"}],
  "rules": [{"type": "permanent", "condition": "ReadonlyFilesystem", "reason": "FilesystemIsReadOnly", "pattern": "Remounting filesystem read-only"}]
}`

type process struct{ cmd *exec.Cmd }

func (p process) close() {
	_ = p.cmd.Process.Kill() // it has nothing to lose
	_ = p.cmd.Wait()
}

// startPeer runs node-problem-detector with one monitor, as administrator of the lab.
func (b *bench) startPeer(ctx context.Context) (process, error) {
	config := filepath.Join(b.agent.Dir, "readonly-monitor.json")
	if err := os.WriteFile(config, []byte(peerConfig), 0o600); err != nil {
		return process{}, err
	}
	cmd := exec.CommandContext(ctx, b.peer, "--config.system-log-monitor="+config, "--hostname-override="+b.lab.NodeName,
		"--apiserver-override="+b.lab.Server()+"?inClusterConfig=false&auth="+b.lab.Paths.AdminKubeconfig,
		"--port=0", "--prometheus-port=0")
	return process{cmd}, cmd.Start()
}

// cost is what a process used of a machine.
type cost struct {
	cpu          time.Duration
	rss          int // KiB
	threads, fds int
}

// measure reads /proc: user and system time, its children's included.
func measure(pid int) (cost, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return cost{}, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	var ticks int
	for _, field := range fields[11:15] { // utime stime cutime cstime
		n, err := strconv.Atoi(field)
		if err != nil {
			return cost{}, err
		}
		ticks += n
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return cost{}, err
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	return cost{cpu: time.Duration(ticks) * 10 * time.Millisecond, rss: field(status, "VmRSS:"), threads: field(status, "Threads:"), fds: len(fds)}, err
}

func field(status []byte, name string) int {
	_, after, _ := strings.Cut(string(status), name)
	n, _ := strconv.Atoi(strings.Fields(after + " 0")[0])
	return n
}

// idleCost measures the daemon with its default checks on the lab node, and the peer with one of its monitors.
func (b *bench) idleCost(ctx context.Context) error {
	say("measuring idle processes for %s each", b.idle)
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	own, err := b.overTime(ctx, b.agent.PID())
	if err := b.agent.Stop(); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	peer, err := b.startPeer(ctx)
	if err != nil {
		return err
	}
	other, err := b.overTime(ctx, peer.cmd.Process.Pid)
	peer.close()
	if err != nil {
		return fmt.Errorf("node-problem-detector: %w", err)
	}
	perMinute := func(c cost) string {
		return fmt.Sprintf("%.2f s", c.cpu.Seconds()*float64(time.Minute)/float64(b.idle))
	}
	b.rows = append(b.rows,
		row{"idle: resident memory (peer: one monitor)", fmt.Sprintf("%.1f MiB", float64(own.rss)/1024), fmt.Sprintf("%.1f MiB", float64(other.rss)/1024), "30 MiB"},
		row{"idle: CPU per minute", perMinute(own), perMinute(other), "0.1 s"},
		row{"idle: threads, open descriptors", fmt.Sprintf("%d, %d", own.threads, own.fds), fmt.Sprintf("%d, %d", other.threads, other.fds), ""})
	return nil
}

// overTime lets a process settle and returns what it uses from then on.
func (b *bench) overTime(ctx context.Context, pid int) (cost, error) {
	if err := pause(ctx, 20*time.Second); err != nil {
		return cost{}, err
	}
	before, err := measure(pid)
	if err == nil {
		err = pause(ctx, b.idle)
	}
	if err != nil {
		return cost{}, err
	}
	after, err := measure(pid)
	after.cpu -= before.cpu
	return after, err
}

// podManifest is one pod of three containers.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: bench-%d, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: true
  containers:
  - {name: a, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
  - {name: b, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
  - {name: c, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
`

// inspection measures what one inspection of many pods costs, and that a quiet node causes no traffic.
func (b *bench) inspection(ctx context.Context) error {
	say("inspecting %d pods", b.pods)
	var manifest strings.Builder
	for i := range b.pods {
		fmt.Fprintf(&manifest, podManifest, i)
	}
	if err := b.lab.KubectlApply(ctx, manifest.String()); err != nil {
		return err
	}
	defer func() {
		_, _ = b.lab.Kubectl(context.WithoutCancel(ctx), "delete", "pods", "--all", "--force", "--grace-period=0", "-n", "default")
	}()
	if _, err := b.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "pods", "--all", "-n", "default", "--timeout=5m"); err != nil {
		return err
	}
	var inspected harness.Inspected
	var cpu, wall []time.Duration
	if _, err := b.agent.JSON(ctx, &inspected, "inspect"); err != nil {
		return err
	}
	for range 5 {
		answer, err := b.agent.CLI(ctx, "inspect")
		if err != nil {
			return err
		}
		cpu, wall = append(cpu, answer.CPU), append(wall, answer.Wall)
	}
	b.rows = append(b.rows,
		row{fmt.Sprintf("inspect, %d pods, %d objects: CPU of the whole command", b.pods, len(inspected.Objects)), spread(cpu), "–", "150 ms"},
		row{"inspect: wall time", spread(wall), "–", ""},
		row{"inspect: suspicious objects → apiserver asked", fmt.Sprintf("%d → %s", inspected.Suspicious(), inspected.Gate("apiserver-heard")), "–", "not asked"})
	return nil
}
