package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	cmd := exec.CommandContext(ctx, b.peer, "--config.system-log-monitor="+config, "--hostname-override="+
		b.lab.NodeName,
		"--apiserver-override="+b.lab.Server()+"?inClusterConfig=false&auth="+b.lab.Paths.AdminKubeconfig,
		"--port=0", "--prometheus-port=0")
	return process{cmd}, cmd.Start()
}

// idleCost measures the daemon with its default checks on the lab node and, at the same time, the peer with one of its
// monitors.
func (b *bench) idleCost(ctx context.Context) (err error) {
	say("measuring idle processes for %s", b.idle)
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop()) }()
	peer, err := b.startPeer(ctx)
	if err != nil {
		return err
	}
	defer peer.close()
	var other span
	var failed error
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		none := func(context.Context) (series, error) { return nil, nil }
		other, failed = b.overTime(ctx, peer.cmd.Process.Pid, none)
	}()
	own, err := b.overTime(ctx, b.agent.PID(), metrics)
	<-measured
	if failed != nil {
		failed = fmt.Errorf("node-problem-detector: %w", failed)
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	mib := func(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }
	cpu := func(s span) string { return fmt.Sprintf("%.2f s", s.perMinute((s.after.cpu - s.before.cpu).Seconds())) }
	threads := func(s span) string {
		return fmt.Sprintf("%d → %d, %d → %d, %d", s.before.threads, s.after.threads, s.before.fds, s.after.fds,
			s.after.kmsg)
	}
	goroutines := func(s series) float64 { return s.sum("go_goroutines") }
	requests := own.said.sum("nodeagent_apiserver_requests_total") - own.saidBefore.sum(
		"nodeagent_apiserver_requests_total")
	b.rows = append(b.rows,
		row{"idle: resident memory (peer: one monitor)", own.memory(), other.memory(), "30 MiB"},
		row{"idle: of it not pages of the program's file", mib(own.after.own), mib(other.after.own), ""},
		row{"resident memory, the most since the start", mib(own.after.peak), mib(other.after.peak), ""},
		row{"idle: CPU per minute", cpu(own), cpu(other), "0.15 s"},
		row{"idle: threads, descriptors, of them /dev/kmsg", threads(own), threads(other), "constant, 1"},
		row{"idle: goroutines", fmt.Sprintf("%.0f → %.0f", goroutines(own.saidBefore), goroutines(own.said)), "–",
			"constant"},
		row{"idle: requests to the apiserver per minute", fmt.Sprintf("%.1f", own.perMinute(requests)), "–", ""})
	b.dearest(own)
	return nil
}

// span is a process at the beginning and at the end of a while.
type span struct {
	before, after    cost
	saidBefore, said series
	took             time.Duration
	rss              []int // KiB, each second, the least first
}

// watchMemory notes each second how much memory a process has.
func (s *span) watchMemory(ctx context.Context, pid int, howLong time.Duration) error {
	for end := time.Now().Add(howLong); time.Now().Before(end); {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		now, err := measure(pid)
		if err != nil {
			return err
		}
		s.rss = append(s.rss, now.rss)
	}
	slices.Sort(s.rss)
	return nil
}

// memory words the usual and the most memory of a while.
func (s *span) memory() string {
	return fmt.Sprintf("%.1f MiB (at most %.1f)", float64(s.rss[len(s.rss)/2])/1024, float64(s.rss[len(s.rss)-1])/1024)
}

func (s span) perMinute(n float64) float64 { return n * float64(time.Minute) / float64(s.took) }

// overTime lets a process settle and returns what it uses from then on.
func (b *bench) overTime(ctx context.Context, pid int, say func(context.Context) (series, error)) (s span, err error) {
	if err := pause(ctx, 20*time.Second); err != nil {
		return s, err
	}
	began := time.Now()
	if s.before, err = measure(pid); err != nil {
		return s, err
	}
	if s.saidBefore, err = say(ctx); err != nil {
		return s, err
	}
	if err := s.watchMemory(ctx, pid, b.idle); err != nil {
		return s, err
	}
	if s.after, err = measure(pid); err != nil {
		return s, err
	}
	s.took = time.Since(began)
	s.said, err = say(ctx)
	return s, err
}

// dearest notes the checks that took longest in a while: where to look first when the agent is not cheap.
func (b *bench) dearest(s span) {
	const metric, shown = "nodeagent_check_duration_seconds_sum{check=", 8
	type one struct {
		check string
		took  float64 // seconds per minute
	}
	var all []one
	for name, value := range s.said {
		if check, ok := strings.CutPrefix(name, metric); ok {
			all = append(all, one{strings.Trim(check, `"`), s.perMinute(value - s.saidBefore[name])})
		}
	}
	slices.SortFunc(all, func(x, y one) int { return cmp.Compare(y.took, x.took) })
	var words []string
	for _, o := range all[:min(shown, len(all))] {
		words = append(words, fmt.Sprintf("%s %.1f ms", o.check, o.took*1000))
	}
	b.notes = append(b.notes, "longest looks, wall time per minute: "+strings.Join(words, ", "))
}
