package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// systemd-units asks systemd over D-Bus (its own socket /run/systemd/private, else the system bus) for
//
//	ListUnitsByPatterns(["failed"], [])                   units that have failed
//	ListUnitsByPatterns(["active", …], ["*.service"])     services that run or wait to be started again
//	NRestarts, Result, ExecMainCode, ExecMainStatus, TriggeredBy, Transient …  of those
//
// https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html. Nothing is changed. The look
// asks; between looks the agent listens on the bus for services that fail (host.WatchSystemd), which makes it look at
// once.
//
// A unit stays in the state failed until it is started again or `systemctl reset-failed` forgets it: there is no
// threshold, but it must be seen twice, since whoever watches a unit may be about to start it again: a second apart
// where systemd told of it, otherwise half a minute. What systemd starts again by itself (Restart=) is not failed
// meanwhile: its sub-state is auto-restart, and NRestarts counts. Three restarts in ten minutes are what the
// Prometheus node mixin (more than 2 in 5 minutes) and the EKS node monitoring agent (more than 3) call a crash loop;
// the finding is kept until there was none for ten minutes. NRestarts that becomes smaller was reset by somebody who
// started the unit.
//
// Known false alarms, and what is done: jobs of timers that will run again, sessions of people, units that a program
// made and forgot, consoles without a terminal, and services that only wait at boot are told as information. Units
// that are nobody's matter on these nodes can be left out by the setting ignore.

const (
	systemdUnitsID       = "systemd-units"
	unitFailed           = "UnitFailed"
	unitFlapping         = "UnitFlapping"
	systemdSilent        = "SystemdNotAnswering"
	systemdManyFailed    = "ManyUnitsFailed"
	unitFlappingWindow   = 10 * time.Minute
	unitFlappingRestarts = 3
)

// SystemdUnitsSettings say which units matter. Patterns are those of path.Match: kubelet.service, *.mount.
type SystemdUnitsSettings struct {
	Ignore   []string `yaml:"ignore"`   // never told
	Critical []string `yaml:"critical"` // a warning always, never only information
}

// DefaultSystemdUnitsSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSystemdUnitsSettings() SystemdUnitsSettings {
	return SystemdUnitsSettings{Critical: []string{
		"kubelet.service", "kubelet.*.service", "k3s*.service", "rke2-*.service", "containerd.service", "crio.service",
		"cri-o.service", "docker.service",
		"cri-docker.service", "kube-proxy.service", "calico-node.service", "cilium.service", "flanneld.service",
		"dbus*.service",
		"systemd-journald.service", "systemd-networkd.service", "NetworkManager.service", "sshd.service", "ssh.service",
	}}
}

// SystemdUnits finds units that have failed, and services that are started again and again. Memory may be nil.
func SystemdUnits(s SystemdUnitsSettings, memory detect.StateStore) detect.Check {
	look := unitsLook{settings: s, restarts: unitRestarts{
		saved: detect.Saved[keptRestarts]{Store: memory, Key: unitRestartsKey}}}
	return detect.Check{
		ID:      systemdUnitsID,
		Domain:  "kubernetes",
		Summary: "a service of the node has failed, or is started again and again",
		Advice: "`systemctl status UNIT` and `journalctl -u UNIT -n 50` show why it ended. Mend the cause, then " +
			"`systemctl restart UNIT`; a unit that nobody needs: `systemctl disable --now UNIT` and `systemctl " +
			"reset-failed UNIT`.",
		Doc: detect.Doc{
			Reads: []string{"systemd over D-Bus: lists of units, and how those ended that failed or are started again",
				"its signals of services that fail, at which it looks at once"},
			Why: "Mounts, time, name resolution, logs and security of the node are kept by its services. " +
				"Kubernetes does not look at them.",
			Faults: []detect.Fault{
				{Reason: unitFailed, Severity: finding.Warning, When: "a unit is in the state failed, seen twice; " +
					"information for jobs of timers, sessions of people, units that programs made, consoles, and " +
					"services that only wait at boot"},
				{Reason: unitFlapping, Severity: finding.Warning, When: "systemd has started a service again 3 times " +
					"in 10 minutes, or is about to after a failure, seen twice; gone after " +
					"10 minutes without; information for consoles"},
				{Reason: systemdManyFailed, Severity: finding.Warning, When: "more than 100 units have failed: the " +
					"first 100 are told one by one"},
				{Reason: systemdSilent, Severity: finding.Warning, When: "systemd takes no connection, or does not " +
					"answer within 5 s: it has crashed, or PID 1 hangs"},
			},
			FalseAlarms: "A failed unit is told until it is started or `systemctl reset-failed` forgets it, also " +
				"when nobody needs it any more: see the setting ignore. Kubelet and the container runtime are judged " +
				"by kubelet-health and runtime-health; here they are never more than a warning.",
		},
		Every:    30 * time.Second,
		Deadline: 10 * time.Second,
		Wakes:    []detect.Wake{{Source: detect.WakeSystemd}},
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 2}},
		Run:      look.run,
	}
}

// unitsLook looks at all units.
type unitsLook struct {
	settings SystemdUnitsSettings

	mu       sync.Mutex // guards restarts; held during a look
	restarts unitRestarts
}

func (l *unitsLook) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
		return nil, finding.NotApplicable("another service manager than systemd runs")
	case errors.Is(err, systemd.ErrSystemdSilent):
		return []finding.Finding{silentSystemd(err)}, err
	case err != nil:
		return nil, err
	}
	l.restarts.saw(units.Running, h.Clock())
	return l.judge(units, h.Clock()), nil
}
