package agent

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/host/watch"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/configmap"
	"github.com/nodeagent/nodeagent/pkg/report/event"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// serveMetrics returns a component that answers /metrics, /readyz and /healthz on a loopback address.
func serveMetrics(m *metrics.Metrics, address string, h health) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := metrics.CheckAddress(address); err != nil {
			return err
		}
		return status.ServeLoopback(ctx, address, h.handler(m.Handler()))
	}
}

// openReporters opens the reporters. Without an apiserver these are only the metrics.
func (a *Agent) openReporters() *metrics.Metrics {
	namings := map[string]finding.Condition{}
	for _, c := range a.checks {
		if c.Condition != (finding.Condition{}) {
			namings[c.ID] = c.Condition
		}
	}
	m := metrics.New(metrics.Config{Version: Version, Conditions: namings})
	m.Expect(a.monitors.Reasons())
	a.reporters = append(a.reporters, m)
	a.leftovers.meter, a.meter = m, m
	a.sinks = newSinkMonitor(m)
	a.openEventCenter(m)
	if a.clients.Client == nil {
		return m
	}
	a.clients.Client.Observe(m.Requested)
	var moved func(string, corev1.ConditionStatus) (time.Time, bool)
	if settings := a.cfg.Report.Conditions; settings.Enabled {
		conditions := condition.New(condition.Config{
			Node: a.clients.Client, Conditions: namings, Vocabulary: settings.Vocabulary,
			Store: a.store.Bucket("conditions"), Started: a.started,
			Spread: settings.Spread, Refresh: settings.Refresh,
			Observer: a.sinks, Log: a.log,
		})
		a.reporters, moved = append(a.reporters, conditions), conditions.Moved
	}
	if settings := a.cfg.Report.Taint; settings.Mode != taint.Off || taint.Owed(a.store.Bucket("taint")) {
		a.taint = taint.New(taint.Config{
			Node: a.clients.Client, Mode: settings.Mode, Key: settings.Key, Hold: settings.Hold,
			Budget: a.fleet, Prefer: settings.Prefer, Stopped: a.leftovers.runner.KillSwitch,
			Elsewhere: elsewhere(a.clients.Client, a.cfg.Fleet), Store: a.store.Bucket("taint"), Observer: a.sinks, Log: a.log,
		})
		a.reporters = append(a.reporters, a.taint)
	}
	if a.cfg.Report.ConfigMap.Enabled {
		a.reporters = append(a.reporters, a.openConfigMap(namings, moved))
	}
	if settings := a.cfg.Report.Events; settings.Enabled {
		a.reporters = append(a.reporters, event.New(event.Config{
			Node: a.clients.Host.NodeName, Sink: a.clients.Client, Store: a.store.Bucket("events"),
			Burst: settings.Burst, Every: settings.Every, Wordings: a.monitors.Wordings(),
			Observer: a.sinks, Log: a.log,
		}))
	}
	return m
}

// openConfigMap opens the reporter of the node's ConfigMap. It takes transition times from moved, which may be nil.
func (a *Agent) openConfigMap(namings map[string]finding.Condition,
	moved func(string, corev1.ConditionStatus) (time.Time, bool)) report.Reporter {
	settings := a.cfg.Report.Conditions
	return configmap.New(configmap.Config{
		Cluster: a.clients.Client, Node: a.clients.Host.NodeName, Namespace: configMapNamespace(a.cfg),
		Version: Version, Configuration: a.configuration(),
		Conditions: condition.Config{
			Conditions: namings, Vocabulary: settings.Vocabulary, Store: a.store.Bucket("configmap"), Started: a.started,
			Spread: settings.Spread, Moved: moved, Observer: a.sinks, Log: a.log,
		},
	})
}

// sources returns the sources that wake checks between their intervals.
func sources(h *host.Host, log *slog.Logger, m *metrics.Metrics, kernelLog *kernellog.Log,
	monitors *npd.Monitors) []detect.Source {
	watching := func(name detect.WakeSource, run func(ctx context.Context, changed func()) error) detect.Source {
		return detect.Source{Name: name, Run: func(ctx context.Context, wake func(detect.Change)) error {
			return run(ctx, func() { wake(detect.Change{}) })
		}}
	}
	return []detect.Source{
		kernellog.KernelLogSource(kernelLog, log, monitors.Kernel(kmsg.WatchKernelLog), func(records uint64) {
			m.KmsgLost(int(min(records, 1<<30))) //nolint:gosec // bounded
		}),
		watching(detect.WakeMounts, func(ctx context.Context, changed func()) error {
			return watch.WatchMounts(ctx, h.Paths.InitPID, changed)
		}),
		watching(detect.WakePlugins, func(ctx context.Context, changed func()) error {
			return watch.WatchDir(ctx, h.Paths.PluginRegistry, changed)
		}),
		watching(detect.WakeLinks, netlink.WatchLinks),
		watching(detect.WakeSystemd, systemd.WatchSystemd),
	}
}
