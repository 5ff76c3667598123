package npd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	statstypes "k8s.io/node-problem-detector/pkg/systemstatsmonitor/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// metric is one metric of node-problem-detector: its ID, its help text and its labels.
type metric struct {
	id, help string
	counter  bool
	labels   []string
}

// The help texts and labels are node-problem-detector's (pkg/systemstatsmonitor). At each sample it adds the totals
// since boot to its counters of the groups cpu/ and net/, so that they grow without bound; here they are the totals.
func gauge(id, help string, labels ...string) *metric {
	return &metric{id: id, help: help, labels: labels}
}

func total(id, help string, labels ...string) *metric {
	return &metric{id: id, help: help, counter: true, labels: labels}
}

// sample is one value of a metric.
type sample struct {
	metric *metric
	labels []string // values, in the metric's order
	value  float64
}

// sampler reads a group of metrics. The samples that it could read count even if it returns an error.
type sampler func(ctx context.Context, h *host.Host, last *previous) ([]sample, error)

// statsMonitor is one system stats monitor: it samples at its interval, like node-problem-detector, so that a scrape is
// cheap and cannot hang.
type statsMonitor struct {
	file     File
	id       string
	names    map[string]string // Prometheus names of metrics, by ID
	samplers []sampler
	last     previous // only for the sampling goroutine

	mu       sync.Mutex // guards snapshot
	snapshot []sample
}

// previous has the last values, to compute rates.
type previous struct {
	at       time.Duration     // since boot
	weighted map[string]uint64 // by device: weighted I/O time, in ms
}

func newStatsMonitor(f File, id string) *statsMonitor {
	c := f.Stats
	m := &statsMonitor{file: f, id: id, names: map[string]string{}}
	for _, group := range []struct {
		metrics map[string]statstypes.MetricConfig
		sampler sampler
	}{
		{c.CPUConfig.MetricsConfigs, sampleCPU},
		{c.DiskConfig.MetricsConfigs, diskSampler(c.DiskConfig)},
		{c.HostConfig.MetricsConfigs, sampleHost},
		{c.MemoryConfig.MetricsConfigs, sampleMemory},
		{c.NetConfig.MetricsConfigs, netSampler(c.NetConfig.ExcludeInterfaceRegexp.R)},
		{c.OsFeatureConfig.MetricsConfigs, featureSampler(f.Name, c.OsFeatureConfig.KnownModulesConfigPath)},
	} {
		wanted := false
		for id, metric := range group.metrics {
			if metric.DisplayName != "" {
				m.names[id], wanted = sanitize(metric.DisplayName), true
			}
		}
		if wanted {
			m.samplers = append(m.samplers, group.sampler)
		}
	}
	return m
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_]`)

// sanitize makes a Prometheus name like node-problem-detector's exporter: cpu/load_1m becomes cpu_load_1m.
func sanitize(name string) string {
	name = notInNames.ReplaceAllString(name[:min(len(name), 100)], "_")
	switch {
	case name[0] >= '0' && name[0] <= '9':
		name = "key_" + name
	case name[0] == '_':
		name = "key" + name
	}
	return name
}

// check samples.
func (m *statsMonitor) check() detect.Check {
	return detect.Check{
		ID: m.id, Domain: domain, Every: max(m.file.Stats.InvokeInterval, time.Second), Deadline: 10 * time.Second,
		Summary: "metrics of " + m.file.Name + " cannot be read",
		Advice:  "the error names what could not be read; the metrics of the others are served",
		Doc: detect.Doc{
			Reads: []string{"/proc/stat", "/proc/loadavg", "/proc/meminfo", "/proc/diskstats", "/proc/net/dev",
				"/proc/modules", "/proc/cmdline"},
			Why: "A system stats monitor of node-problem-detector: " + m.file.Name +
				". It finds nothing; it serves metrics.",
		},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) { return nil, m.sample(ctx, h) },
	}
}

func (m *statsMonitor) sample(ctx context.Context, h *host.Host) error {
	var all []sample
	var problems []error
	for _, read := range m.samplers {
		samples, err := read(ctx, h, &m.last)
		for _, s := range samples {
			if m.names[s.metric.id] != "" {
				all = append(all, s)
			}
		}
		problems = append(problems, err)
	}
	m.last.at = h.Clock().SinceBoot
	m.mu.Lock()
	m.snapshot = all
	m.mu.Unlock()
	return errors.Join(problems...)
}

// collector serves the newest samples of all monitors.
type collector []*statsMonitor

// Describe implements prometheus.Collector: the set of metrics depends on the host.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. A series in two files is served once.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	served := map[string]bool{}
	for _, m := range c {
		m.mu.Lock()
		snapshot := m.snapshot
		m.mu.Unlock()
		for _, s := range snapshot {
			name := m.names[s.metric.id]
			key := name + "\x00" + strings.Join(s.labels, "\x00")
			if served[key] {
				continue
			}
			served[key] = true
			kind := prometheus.GaugeValue
			if s.metric.counter {
				kind = prometheus.CounterValue
			}
			desc := prometheus.NewDesc(name, s.metric.help, s.metric.labels, nil)
			value, err := prometheus.NewConstMetric(desc, kind, s.value, s.labels...)
			if err != nil {
				value = prometheus.NewInvalidMetric(desc, fmt.Errorf("%s: %w", s.metric.id, err))
			}
			metrics <- value
		}
	}
}

// label makes outside text a valid label.
func label(text string) string {
	const most = 512
	return strings.ToValidUTF8(finding.Clip(text, most), "\uFFFD")
}
