package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// systemd-units reads over D-Bus (systemd's socket /run/systemd/private, else the system bus)
//
//	ListUnitsByPatterns(["failed"], [])                   units that have failed
//	ListUnitsByPatterns(["active", …], ["*.service"])     services that run or wait to be started again
//	NRestarts, Result, ExecMainCode, ExecMainStatus, TriggeredBy, Transient …  of those
//
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html. Signals of services that fail
// (host.WatchSystemd) wake the check.
//
// A unit stays failed until it is started again or `systemctl reset-failed` forgets it. It must be seen twice, a second
// or half a minute apart, because its supervisor may be about to start it. A unit that systemd restarts itself
// (Restart=) has the sub-state auto-restart meanwhile, and NRestarts counts; a smaller NRestarts was reset by a manual
// start. The Prometheus node mixin (more than 2 in 5 minutes) and the EKS node monitoring agent (more than 3) call
// about three restarts in ten minutes a crash loop.

const (
	unitFailed           = "UnitFailed"
	unitFlapping         = "UnitFlapping"
	systemdSilent        = "SystemdNotAnswering"
	systemdManyFailed    = "ManyUnitsFailed"
	unitFlappingWindow   = 10 * time.Minute
	unitFlappingRestarts = 3
)

// SystemdUnitsSettings select which units matter. Patterns are those of path.Match: kubelet.service, *.mount.
type SystemdUnitsSettings struct {
	Ignore   []string `yaml:"ignore"`   // never reported
	Critical []string `yaml:"critical"` // always a warning, never information
}

// DefaultSystemdUnitsSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSystemdUnitsSettings() SystemdUnitsSettings {
	var daemons []string
	for _, unit := range slices.Concat(distro.KubeletUnits(), distro.RuntimeUnits()) {
		daemons = append(daemons, unit+".service")
	}
	return SystemdUnitsSettings{Critical: append(daemons,
		"kubelet.*.service", "kube-proxy.service", "calico-node.service", "cilium.service", "flanneld.service",
		"dbus*.service",
		"systemd-journald.service", "systemd-networkd.service", "NetworkManager.service", "sshd.service", "ssh.service",
	)}
}

// SystemdUnits finds failed units, and services in a crash loop. Memory may be nil.
func SystemdUnits(s SystemdUnitsSettings, memory detect.StateStore) detect.Check {
	state := unitsState{settings: s, restarts: unitRestarts{
		saved: detect.Saved[keptRestarts]{Store: memory, Key: unitRestartsKey}}}
	return detect.Check{
		ID:      "systemd-units",
		Domain:  "kubernetes",
		Summary: "a service of the node has failed, or is in a crash loop",
		Advice: "`systemctl status UNIT` and `journalctl -u UNIT -n 50` show why it exited. Fix the cause, then " +
			"`systemctl restart UNIT`. For a unit that is not needed: `systemctl disable --now UNIT` and `systemctl " +
			"reset-failed UNIT`.",
		Doc: detect.Doc{
			Reads: []string{"systemd over D-Bus: lists of units, and the results of those that failed or are restarted",
				"its signals of services that fail, which make the check run at once"},
			Why: "Mounts, time, name resolution, logs and security of the node depend on its services. Kubernetes " +
				"does not monitor them.",
			Faults: []detect.Fault{
				{Reason: unitFailed, Severity: finding.Warning, When: "a unit is in the state failed, seen twice; " +
					"information for jobs of timers, login sessions, transient units, consoles, and services that " +
					"only wait at boot"},
				{Reason: unitFlapping, Severity: finding.Warning, When: "systemd has restarted a service 3 times in " +
					"10 minutes, or is about to after a failure, seen twice; cleared after " +
					"10 minutes without a restart; information for consoles"},
				{Reason: systemdManyFailed, Severity: finding.Warning, When: "more than 100 units have failed: the " +
					"first 100 are reported one by one"},
				{Reason: systemdSilent, Severity: finding.Warning, When: "systemd accepts no connection, or does not " +
					"answer within 5 s: it has crashed, or PID 1 hangs"},
			},
			FalseAlarms: "A failed unit is reported until it is started or `systemctl reset-failed` forgets it, even " +
				"if it is not needed: see the setting ignore. Kubelet and the container runtime are evaluated by " +
				"kubelet-health and runtime-health; here they are never more than a warning.",
		},
		Every:  30 * time.Second,
		Wakes:  []detect.Wake{{Source: detect.WakeSystemd}},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:    state.run,
	}
}

// unitsState is kept between runs.
type unitsState struct {
	settings SystemdUnitsSettings
	restarts unitRestarts
}

func (l *unitsState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	for _, pattern := range slices.Concat(l.settings.Ignore, l.settings.Critical) {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("setting ignore or critical: %q: %w", pattern, err)
		}
	}
	if h.Systemd.Units == nil {
		return nil, finding.NotApplicable("no systemd is configured on this host")
	}
	units, err := h.Systemd.Units(ctx)
	switch {
	case errors.Is(err, hosterr.ErrNotConfigured):
		return nil, finding.NotApplicable("the service manager is not systemd")
	case errors.Is(err, systemd.ErrSystemdSilent):
		return []finding.Finding{silentSystemd(err)}, err
	case err != nil:
		return nil, err
	}
	l.restarts.observe(units.Running, h.Clock())
	return l.evaluate(units, h.Clock()), nil
}
