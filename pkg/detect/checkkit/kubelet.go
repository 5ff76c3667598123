package checkkit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// KubeletNetwork caches kubelet's network configuration for the life of its process.
type KubeletNetwork struct {
	process host.Process
	network discover.KubeletNetwork
}

// Get reads kubelet's files once for each of its processes, and every time if none runs.
func (k *KubeletNetwork) Get(h *host.Host) (discover.KubeletNetwork, error) {
	var process host.Process
	if h.Kubelet.Process != nil {
		process, _ = h.Kubelet.Process()
	}
	if process.PID != 0 && process.PID == k.process.PID && process.StartTime == k.process.StartTime {
		return k.network, nil
	}
	network, err := discover.ReadKubeletNetwork(h)
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return network, finding.NotApplicable("no configuration of kubelet was found on this host: no process of " +
			"kubelet, and no file of a distribution that docs/distributions.md lists. Where there is a kubelet " +
			"nevertheless, name a file with its clusterDNS as paths.kubeletConfig")
	}
	if err == nil {
		k.process, k.network = process, network
	}
	return network, err
}

// MaxNameservers is how many servers a resolver of libc uses (MAXNS in resolv.conf(5)); kubelet drops the others.
const MaxNameservers = 3

// ClusterServers returns the name servers of the cluster. It skips malformed addresses: kubelet refuses to start with
// them.
func ClusterServers(network discover.KubeletNetwork) []netip.Addr {
	var servers []netip.Addr
	for _, text := range network.ClusterDNS[:min(len(network.ClusterDNS), MaxNameservers)] {
		if server, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			servers = append(servers, server)
		}
	}
	return servers
}

// KubeletInstalled reports whether kubelet is installed on this host, although it is not running.
func KubeletInstalled(h *host.Host) bool {
	if h.NodeName != "" {
		return true
	}
	if h.Paths.KubeletRoot == "" {
		return false
	}
	names, err := h.Files.List(filepath.Join(h.Paths.KubeletRoot, "pods"))
	return err == nil && len(names) > 0
}

// ThreadStates has the states of the threads of a process, from /proc/PID/task/TID/stat.
type ThreadStates struct {
	Main    byte // state of the main thread; 0 if it could not be read
	Blocked int  // threads in state D: in the kernel, not interruptible by signals
}

// maxThreads bounds how many threads of a hung daemon are read.
const maxThreads = 2000

// ReadThreadStates reads the states of a daemon that does not answer. In a Go program any thread may be the one that
// hangs in a system call, so the main thread alone is no proof. It skips unreadable threads: the process may end
// meanwhile.
func ReadThreadStates(h *host.Host, pid int) ThreadStates {
	var states ThreadStates
	if main, err := h.ProcStat(pid); err == nil {
		states.Main = main.State
	}
	tids, err := h.TIDs(pid)
	if err != nil {
		return states
	}
	for _, tid := range tids[:min(len(tids), maxThreads)] {
		if thread, err := h.TaskStat(pid, tid); err == nil && thread.State == 'D' {
			states.Blocked++
		}
	}
	return states
}

// The checks that read kubelet's metrics share one scrape a minute. On an idle node they share the last scrape
// (host.Kubelet.RecentScrape), unless one of them has a finding.

// KubeletProblem is the condition of faults that keep kubelet from serving pods.
func KubeletProblem() finding.Condition {
	return finding.Condition{
		Type: "KubeletUnhealthy", ReadyType: "KubeletReady",
		HealthyReason: "KubeletIsHealthy", HealthyMessage: "kubelet on the node is functioning properly",
	}
}

// KubeletSubject is the subject of findings about kubelet itself.
func KubeletSubject() finding.Subject { return finding.Subject{Kind: "kubelet", Name: "kubelet"} }

const metricsRefused = "the agent has no right to read kubelet's metrics: it needs get on nodes/metrics"

// scrapeKubelet reads kubelet's metrics. If kubelet does not answer, that is an error here, and a finding of
// kubelet-health.
func scrapeKubelet(ctx context.Context, h *host.Host, anew bool) (*kubelet.Scrape, error) {
	ask := h.Kubelet.Scrape
	if ask == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	if !anew && h.Kubelet.RecentScrape != nil {
		ask = h.Kubelet.RecentScrape
	}
	scrape, err := ask(ctx)
	switch {
	case errors.Is(err, hosterr.ErrNotConfigured):
		return nil, finding.NotApplicable("kubelet serves no API on this node (enableServer: false)")
	case errors.Is(err, hosterr.ErrForbidden):
		return nil, fmt.Errorf("%s: %w", metricsRefused, err)
	case err != nil:
		return nil, fmt.Errorf("kubelet's metrics: %w", err)
	}
	return scrape, nil
}

// KubeletMeter measures how much counters of kubelet rise within a window of time.
type KubeletMeter struct {
	Window           time.Duration
	ReportsForbidden bool // report missing permission to read them: one check is enough for that
	// NoRest means that the next run needs metrics of its own minute, although no pod changes.
	NoRest bool
	// Strict means that a rise over much more than the window is ignored. Gap is true after such a late scrape.
	Strict, Gap bool

	window Window[float64] // of one kubelet process
	at     finding.Timestamp
	epoch  float64 // when kubelet started, by its own clock
}

// Read adds one scrape. The returned map is nil if no rise is known: after the first scrape, or the first one of a new
// kubelet. Pick returns the key under which a sample is counted, empty for none.
func (m *KubeletMeter) Read(ctx context.Context, h *host.Host, pick func(name string, s kubelet.Sample) string,
	names ...string) (map[string]float64, *kubelet.Scrape, error) {
	scrape, err := scrapeKubelet(ctx, h, m.NoRest)
	if err != nil {
		// If they were readable before, a permission was removed: that is an error of each check.
		if errors.Is(err, hosterr.ErrForbidden) && !m.ReportsForbidden && len(m.window.samples) == 0 {
			err = finding.NotApplicable("%s; kubelet-pleg reports it", metricsRefused)
		}
		return nil, nil, err
	}
	values := make(map[string]float64)
	for _, name := range names {
		for _, sample := range scrape.Metrics[name] {
			if key := pick(name, sample); key != "" {
				values[key] += sample.Value
			}
		}
	}
	epoch, _ := scrape.Metrics.Gauge("process_start_time_seconds")
	m.add(scrape.At, epoch, values)
	return m.rises(), scrape, nil
}

func (m *KubeletMeter) add(at finding.Timestamp, epoch float64, values map[string]float64) {
	if len(m.window.samples) > 0 && m.at == at {
		return // the same scrape again
	}
	same := m.at.Boot == at.Boot && m.epoch == epoch
	m.Gap = m.Strict && same && at.Since(m.at) > m.Window
	if !same || m.Gap {
		m.window.samples = nil
	}
	m.window.Span, m.window.OneProcess, m.at, m.epoch = m.Window, true, at, epoch
	m.window.Add(at.SinceBoot, values)
}

func (m *KubeletMeter) rises() map[string]float64 {
	if len(m.window.samples) < 2 {
		return nil
	}
	rises := make(map[string]float64)
	for key := range m.window.samples[len(m.window.samples)-1].values {
		rises[key], _, _ = m.window.Rise(key)
	}
	return rises
}

// Follow makes the next run scrape kubelet again if there are findings, until they are gone.
func (m *KubeletMeter) Follow(found []finding.Finding) []finding.Finding {
	m.NoRest = len(found) > 0
	return found
}

// Oldest returns the counters at the start of the window. There are some if Read has returned rises.
func (m *KubeletMeter) Oldest() map[string]float64 { return m.window.samples[0].values }

// LastInterval returns the time between the two newest scrapes, 0 if there are fewer than two.
func (m *KubeletMeter) LastInterval() time.Duration { return m.between(len(m.window.samples) - 2) }

// Span returns the time that the rises cover, rounded for a message.
func (m *KubeletMeter) Span() time.Duration {
	elapsed := m.between(0)
	if elapsed < 2*time.Minute {
		return elapsed.Round(time.Second)
	}
	return elapsed.Round(time.Minute)
}

// between returns the time between a scrape and the newest one, 0 if there are fewer than two.
func (m *KubeletMeter) between(scrape int) time.Duration {
	samples := m.window.samples
	if len(samples) < 2 {
		return 0
	}
	return samples[len(samples)-1].at - samples[scrape].at
}
