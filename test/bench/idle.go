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
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// peerConfig is node-problem-detector's readonly-monitor.json as shipped, except for lookback: with five minutes it
// would report the failure of the previous trial.
const peerConfig = `{
  "plugin": "kmsg", "logPath": "/dev/kmsg", "lookback": "1s", "bufferSize": 10, "source": "readonly-monitor", "metricsReporting": true,
  "conditions": [{"type": "ReadonlyFilesystem", "reason": "FilesystemIsNotReadOnly", "message": "Filesystem is not read-only"}],
  "rules": [{"type": "permanent", "condition": "ReadonlyFilesystem", "reason": "FilesystemIsReadOnly", "pattern": "Remounting filesystem read-only"}]
}`

type process struct{ cmd *exec.Cmd }

func (p process) close() {
	_ = p.cmd.Process.Kill() // it has no state to lose
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

// atRest measures, side by side on a node with n pods, the daemon with its default checks and node-problem-detector
// with four monitors: their memory from the start on, their processor time once they have settled.
func (b *bench) atRest(ctx context.Context, n int) (err error) {
	if err := b.fillNode(ctx, n); err != nil {
		return err
	}
	if err := b.settleNode(ctx); err != nil {
		return err
	}
	logf("measuring at rest, with %d pods, for %s", n, b.idle)
	groups := [2]*group{}
	for i, of := range []struct{ name, program, verb string }{
		{"bench-agent", b.binary, "run"}, {"bench-peer", b.peer, ""},
	} {
		if groups[i], err = newGroup(b.work, of.name, of.program, of.verb); err != nil {
			return err
		}
		defer groups[i].remove()
	}
	peer, err := b.startFullPeer(ctx, groups[1].command, b.work)
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
		other, failed = b.overTime(ctx, target{peer.cmd.Process.Pid, groups[1]}, none)
	}()
	from, err := harness.AuditSize(b.lab)
	if err != nil {
		return err
	}
	b.agent.Binary = groups[0].command
	defer func() { b.agent.Binary = b.binary }()
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop()) }()
	own, err := b.overTime(ctx, target{b.agent.PID(), groups[0]}, metrics)
	<-measured
	if failed != nil {
		failed = fmt.Errorf("node-problem-detector: %w", failed)
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if err := b.compare(n, own, other); err != nil {
		return err
	}
	return b.requests(n, from, own)
}

// compare adds the cost of two processes to the table.
func (b *bench) compare(n int, own, other span) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg") // of the last 1, 5 and 15 minutes
	if err != nil {
		return err
	}
	cpu := func(s span) time.Duration {
		return time.Duration(s.perMinute(float64(s.after.cpu - s.settled.cpu))).Round(100 * time.Microsecond)
	}
	minutes := func(s span) string {
		var all []string
		for _, m := range s.minutes() {
			all = append(all, strconv.FormatInt(m.Milliseconds(), 10))
		}
		return strings.Join(all, " ")
	}
	heap, runtime := own.kib("heap_inuse_bytes"), own.kib("stack_inuse_bytes", "mspan_inuse_bytes",
		"mcache_inuse_bytes", "gc_sys_bytes", "other_sys_bytes", "buck_hash_sys_bytes")
	threads := func(s span) string {
		return fmt.Sprintf("%d → %d, %d → %d, %d", s.settled.threads, s.after.threads, s.settled.fds, s.after.fds,
			s.after.kmsg)
	}
	both := func(what string, value func(cost) int, goal string) row {
		return row{what, mib(own.median(value)), mib(other.median(value)), goal}
	}
	most := func(what string, value func(cost) int, goal string) row {
		return row{what, mib(own.most(value)), mib(other.most(value)), goal}
	}
	resident, working := func(c cost) int { return c.rss }, func(c cost) int { return c.working }
	b.rows = append(b.rows,
		row{fmt.Sprintf("%d pods of 3 containers, %d mounts, load %s", n, strings.Count(string(mounts), "\n"),
			strings.Join(strings.Fields(string(load))[:3], " ")), "", "", ""},
		row{"  CPU a minute, children counted", cpu(own).String(), cpu(other).String(), ""},
		row{"  ratio", fmt.Sprintf("%.1f", float64(cpu(own))/float64(cpu(other))), "1", "4"},
		row{"  CPU, minute by minute: ms", minutes(own), minutes(other), ""},
		both("  resident (RSS): median", resident, "30 MiB"),
		row{"  the most, the start included", mib(own.after.peak), mib(other.after.peak), "45 MiB"},
		both("  proportional (PSS): median", func(c cost) int { return c.pss }, ""),
		both("  anonymous (heap, stacks): median", func(c cost) int { return c.anonymous }, ""),
		most("  the most", func(c cost) int { return c.anonymous }, ""),
		both("  pages of the program's file: median", func(c cost) int { return c.file }, ""),
		both("  working set of the cgroup, as kubelet reports: median", working, ""),
		most("  the most", working, ""),
		row{"  at the end: Go heap in use, stacks and runtime", mib(heap) + ", " + mib(runtime), "–", ""},
		row{"  at the end: anonymous, neither of both", mib(own.after.anonymous - heap - runtime), "–", ""},
		row{"  threads, descriptors, of them /dev/kmsg", threads(own), threads(other), "constant, 1"},
		row{"  goroutines", fmt.Sprintf("%.0f → %.0f", own.settledMetrics.sum("go_goroutines"),
			own.metrics.sum("go_goroutines")), "–", "constant"})
	b.slowest(own)
	return nil
}

// requests adds the agent's requests to the apiserver, by its audit log.
func (b *bench) requests(n int, from int64, own span) error {
	starting, err := harness.AgentRequests(b.lab, from, own.settledAudit)
	if err != nil {
		return err
	}
	resting, err := harness.AgentRequests(b.lab, own.settledAudit, own.audit)
	if err != nil {
		return err
	}
	sum := func(counts map[string]int) (total int) {
		for _, n := range counts {
			total += n
		}
		return total
	}
	b.rows = append(b.rows, row{"  requests because of the agent: at its start; then a minute",
		fmt.Sprintf("%d; %.2f", sum(starting), own.perMinute(float64(sum(resting)))), "–", "0.25"})
	b.notes = append(b.notes, fmt.Sprintf("requests with %d pods, after the start: %v", n, resting))
	return nil
}

func mib(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }

// span is a process from its start to the end of the measurement.
type span struct {
	settled, after          cost
	settledMetrics, metrics series
	settledAudit, audit     int64         // sizes of the apiserver's audit log
	took                    time.Duration // from settled to after
	samples                 []cost        // each second from the start
	settledAt               int           // index of the first sample after settling
}

// settling is how long a started process may be busy: the load of the node's own start makes the agent read all threads.
const settling = 2 * time.Minute

// values returns one value of all samples, the least first.
func (s span) values(of func(cost) int) []int {
	var values []int
	for _, c := range s.samples {
		values = append(values, of(c))
	}
	slices.Sort(values)
	return values
}

func (s span) median(of func(cost) int) int { values := s.values(of); return values[len(values)/2] }
func (s span) most(of func(cost) int) int   { return slices.Max(s.values(of)) }

// kib adds up metrics of Go's memory.
func (s span) kib(metrics ...string) (sum int) {
	for _, m := range metrics {
		sum += int(s.metrics.sum("go_memstats_"+m) / 1024)
	}
	return sum
}

// minutes returns the processor time of each full minute after settling.
func (s span) minutes() []time.Duration {
	var all []time.Duration
	begin := s.settled
	for _, c := range s.samples[s.settledAt:] {
		if c.at.Sub(begin.at) >= time.Minute {
			all, begin = append(all, c.cpu-begin.cpu), c
		}
	}
	return all
}

func (s span) perMinute(n float64) float64 { return n * float64(time.Minute) / float64(s.took) }

// sample measures a process each second.
func (s *span) sample(ctx context.Context, of target, howLong time.Duration) error {
	for end := time.Now().Add(howLong); time.Now().Before(end); {
		now, err := of.measure()
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
func (b *bench) overTime(ctx context.Context, of target, read func(context.Context) (series, error)) (s span,
	err error) {
	if err := s.sample(ctx, of, settling); err != nil {
		return s, err
	}
	s.settledAt = len(s.samples)
	if s.settledMetrics, err = read(ctx); err != nil {
		return s, err
	}
	if s.settledAudit, err = harness.AuditSize(b.lab); err != nil {
		return s, err
	}
	if s.settled, err = of.measure(); err != nil {
		return s, err
	}
	if err := s.sample(ctx, of, b.idle); err != nil {
		return s, err
	}
	if s.after, err = of.measure(); err != nil {
		return s, err
	}
	s.took = s.after.at.Sub(s.settled.at)
	if s.audit, err = harness.AuditSize(b.lab); err != nil {
		return s, err
	}
	s.metrics, err = read(ctx)
	return s, err
}

// slowest lists the checks that took longest below the table: where to begin if the agent is not cheap.
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
