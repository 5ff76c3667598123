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
// monitors: their memory from the start on, their processor time once they have settled.
func (b *bench) idleCost(ctx context.Context) (err error) {
	say("measuring idle processes for %s", b.idle)
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
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop()) }()
	own, err := b.overTime(ctx, b.agent.PID(), metrics)
	<-measured
	if failed != nil {
		failed = fmt.Errorf("node-problem-detector: %w", failed)
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	cpu := func(s span) string {
		return fmt.Sprintf("%.2f s", s.perMinute((s.after.cpu - s.settled.cpu).Seconds()))
	}
	threads := func(s span) string {
		return fmt.Sprintf("%d → %d, %d → %d, %d", s.settled.threads, s.after.threads, s.settled.fds, s.after.fds,
			s.after.kmsg)
	}
	kib := func(metrics ...string) (sum int) {
		for _, m := range metrics {
			sum += int(own.metrics.sum("go_memstats_"+m) / 1024)
		}
		return sum
	}
	heap := kib("heap_inuse_bytes")
	runtime := kib("stack_inuse_bytes", "mspan_inuse_bytes", "mcache_inuse_bytes", "gc_sys_bytes", "other_sys_bytes",
		"buck_hash_sys_bytes")
	goroutines := func(s series) float64 { return s.sum("go_goroutines") }
	requests := own.metrics.sum("nodeagent_apiserver_requests_total") - own.settledMetrics.sum(
		"nodeagent_apiserver_requests_total")
	b.rows = append(b.rows,
		row{fmt.Sprintf("resident memory in the first %s: median (peer: one monitor)", b.idle),
			mib(own.median().rss), mib(other.median().rss), "30 MiB"},
		row{"  the most, the start included", mib(own.after.peak), mib(other.after.peak), "30 MiB"},
		row{"  median of anonymous pages: heap, stacks", mib(own.median().anonymous), mib(other.median().anonymous),
			""},
		row{"  median of pages of the program's file", mib(own.median().file), mib(other.median().file), ""},
		row{"  median of pages shared with other processes", mib(own.median().shared), mib(other.median().shared), ""},
		row{"  at the end: Go heap in use", mib(heap), "–", ""},
		row{"  at the end: Go stacks and runtime", mib(runtime), "–", ""},
		row{"  at the end: anonymous, neither of both", mib(own.after.anonymous - heap - runtime), "–", ""},
		row{"idle: CPU per minute", cpu(own), cpu(other), "0.15 s"},
		row{"idle: threads, descriptors, of them /dev/kmsg", threads(own), threads(other), "constant, 1"},
		row{"idle: goroutines", fmt.Sprintf("%.0f → %.0f", goroutines(own.settledMetrics), goroutines(own.metrics)),
			"–",
			"constant"},
		row{"idle: requests to the apiserver per minute", fmt.Sprintf("%.1f", own.perMinute(requests)), "–", ""})
	b.slowest(own)
	return nil
}

func mib(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }

// span is a process from its start to the end of the measurement.
type span struct {
	settled, after          cost
	settledMetrics, metrics series
	took                    time.Duration // from settled to after
	samples                 []cost        // each second from the start
}

// settling is how long a process that has been started may be busy.
const settling = 20 * time.Second

// median returns the medians of what the samples have of memory.
func (s span) median() cost {
	of := func(value func(cost) int) int {
		var values []int
		for _, c := range s.samples {
			values = append(values, value(c))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return cost{
		rss: of(func(c cost) int { return c.rss }), anonymous: of(func(c cost) int { return c.anonymous }),
		file: of(func(c cost) int { return c.file }), shared: of(func(c cost) int { return c.shared }),
	}
}

func (s span) perMinute(n float64) float64 { return n * float64(time.Minute) / float64(s.took) }

// sample measures a process each second.
func (s *span) sample(ctx context.Context, pid int, howLong time.Duration) error {
	for end := time.Now().Add(howLong); time.Now().Before(end); {
		now, err := measure(pid)
		if err != nil {
			return err
		}
		s.samples = append(s.samples, now)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// overTime measures a process that was just started.
func (b *bench) overTime(ctx context.Context, pid int, read func(context.Context) (series, error)) (s span, err error) {
	if err := s.sample(ctx, pid, settling); err != nil {
		return s, err
	}
	began := time.Now()
	if s.settled, err = measure(pid); err != nil {
		return s, err
	}
	if s.settledMetrics, err = read(ctx); err != nil {
		return s, err
	}
	if err := s.sample(ctx, pid, b.idle-settling); err != nil {
		return s, err
	}
	if s.after, err = measure(pid); err != nil {
		return s, err
	}
	s.took = time.Since(began)
	s.metrics, err = read(ctx)
	return s, err
}

// slowest lists the checks that took longest below the table: where to begin when the agent is not cheap.
func (b *bench) slowest(s span) {
	const metric, shown = "nodeagent_check_duration_seconds_sum{check=", 8
	type one struct {
		check string
		took  float64 // seconds per minute
	}
	var all []one
	for name, value := range s.metrics {
		if check, ok := strings.CutPrefix(name, metric); ok {
			all = append(all, one{strings.Trim(check, `"`), s.perMinute(value - s.settledMetrics[name])})
		}
	}
	slices.SortFunc(all, func(x, y one) int { return cmp.Compare(y.took, x.took) })
	var words []string
	for _, o := range all[:min(shown, len(all))] {
		words = append(words, fmt.Sprintf("%s %.1f ms", o.check, o.took*1000))
	}
	b.notes = append(b.notes, "longest checks, wall time per minute: "+strings.Join(words, ", "))
}
