package systemd

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func systemdSubject() finding.Subject {
	return finding.Subject{Kind: "service-manager", Name: "systemd"}
}

func silentSystemd(err error) finding.Finding {
	return finding.Finding{
		Subject: systemdSubject(), Severity: finding.Warning, Reason: systemdSilent,
		Message: "systemd does not answer (" + checkkit.Sanitize(err.Error(), 300) +
			"): see `journalctl _PID=1 -n 50` for a crash (\"freezing execution\"), and whether " +
			"PID 1 hangs in state D; until it answers, no service is started or stopped",
	}
}

// evaluate returns the findings. Each unit is in only one of the lists.
func (l *unitsState) evaluate(units systemd.Units, now finding.Timestamp) []finding.Finding {
	var found []finding.Finding
	for _, u := range units.Failed {
		if !matchesUnit(l.settings.Ignore, u.Name) {
			found = append(found, l.failed(u, now))
		}
	}
	for _, u := range units.Running {
		count := l.restarts.within(u.Name)
		failing := restarting(u) && u.Result != "success"
		if (count > 0 || failing) && !matchesUnit(l.settings.Ignore, u.Name) {
			f := l.flapping(u, count)
			f.BelowRaise = count < unitFlappingRestarts && !failing
			found = append(found, f)
		}
	}
	if units.Omitted > 0 {
		found = append(found, finding.Finding{
			Subject: systemdSubject(), Severity: finding.Warning, Reason: systemdManyFailed,
			Message: fmt.Sprintf("%d units have failed, more than are reported one by one: see `systemctl --failed`",
				len(units.Failed)+units.Omitted),
			Facts: map[string]string{"failed": strconv.Itoa(len(units.Failed) + units.Omitted)},
		})
	}
	return found
}

func (l *unitsState) failed(u systemd.Unit, now finding.Timestamp) finding.Finding {
	severity, remark := l.weigh(u)
	facts := map[string]string{"result": checkkit.Sanitize(u.Result, 50)}
	if !u.Since.IsZero() && u.Since.Before(now.Wall) {
		facts["since"] = u.Since.UTC().Format(time.RFC3339)
	}
	if u.Transient {
		facts["transient"] = "true"
	}
	return finding.Finding{
		Subject: unitSubject(u), Severity: severity, Reason: unitFailed,
		Message: fmt.Sprintf("%s has failed: %s%s: see `systemctl status %s`", unitName(u), howItEnded(u), remark,
			unitName(u)), Facts: facts,
	}
}

func (l *unitsState) flapping(u systemd.Unit, count uint32) finding.Finding {
	severity, remark := l.weigh(u)
	text := fmt.Sprintf("systemd has restarted %s %d times in %.0f minutes", unitName(u), count,
		unitFlappingWindow.Minutes())
	if count < unitFlappingRestarts && restarting(u) {
		text = "systemd is about to restart " + unitName(u)
	}
	if restarting(u) {
		text += ": " + howItEnded(u)
	}
	return finding.Finding{
		Subject: unitSubject(u), Severity: severity, Reason: unitFlapping,
		Message: text + remark + ": see `systemctl status " + unitName(u) + "`",
		Facts: map[string]string{"restarts": strconv.Itoa(int(u.Restarts)),
			"restartsInWindow": strconv.Itoa(int(count)), "state": checkkit.Sanitize(u.Sub, 50)},
	}
}

func unitSubject(u systemd.Unit) finding.Subject {
	return finding.Subject{Kind: "unit", Name: checkkit.Sanitize(u.Name, 255)}
}

func unitName(u systemd.Unit) string { return checkkit.Sanitize(u.Name, 100) }

// weigh returns the severity of a fault of this unit, and a remark for the message.
func (l *unitsState) weigh(u systemd.Unit) (finding.Severity, string) {
	if check := checkOfUnit(u.Name); check != "" {
		return finding.Warning, "; " + check + " reports whether the node is affected"
	}
	if matchesUnit(l.settings.Critical, u.Name) {
		return finding.Warning, ""
	}
	if why := minorUnit(u); why != "" {
		return finding.Info, "; " + why
	}
	return finding.Warning, ""
}

// minorUnit returns why a fault of this unit does not matter to the node; empty if it does.
func minorUnit(u systemd.Unit) string {
	base, instance, _ := strings.Cut(u.Name, "@")
	switch {
	case slices.ContainsFunc(u.TriggeredBy, func(name string) bool { return strings.HasSuffix(name, ".timer") }):
		return "a job of a timer, which will start it again"
	case instance != "" && slices.Contains([]string{"getty", "serial-getty", "console-getty", "container-getty",
		"autovt"}, base), u.Name == "console-getty.service":
		return "a login console"
	case instance != "" && (base == "user" || base == "user-runtime-dir"), strings.HasPrefix(u.Name, "session-"):
		return "part of a login session"
	case strings.HasSuffix(base, "-wait-online.service") || strings.HasSuffix(base, "-wait-online"):
		return "it only waits at boot; the network itself is evaluated by the checks of the network"
	case u.Transient:
		return "a transient unit that a program created"
	}
	return ""
}

// checkOfUnit names the check that reports whether the node suffers from the absence of a unit.
func checkOfUnit(name string) string {
	base, _, _ := strings.Cut(strings.TrimSuffix(name, ".service"), "@")
	if base == name {
		return ""
	}
	switch {
	case distro.IsKubeletUnit(base):
		return "kubelet-health"
	case distro.IsRuntimeUnit(base):
		return "runtime-health"
	}
	switch base {
	case "kube-proxy":
		return "kube-proxy"
	case "chronyd", "chrony", "ntp", "ntpd", "ntpsec", "systemd-timesyncd":
		return "time-sync"
	case "systemd-resolved", "dnsmasq", "nscd":
		return "dns"
	}
	return ""
}

func matchesUnit(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

// howItEnded describes the end of a unit: Result of systemd.service(5), then CLD_… of sigaction(2).
func howItEnded(u systemd.Unit) string {
	const exited, killed, dumped = 1, 2, 3
	switch {
	case u.Result == "oom-kill":
		return "one of its processes was killed because memory ran out"
	case u.Result == "timeout":
		return "it did not start, stop or reload in time"
	case u.Result == "watchdog":
		return "it did not report to systemd's watchdog in time"
	case u.Result == "start-limit-hit":
		return "it was started too often in a short time"
	case u.Result == "resources":
		return "systemd could not prepare its start"
	case u.Result == "dependency":
		return "a unit that it needs has failed"
	case u.Code == exited:
		return fmt.Sprintf("its main process exited with code %d", u.Status)
	case u.Code == killed:
		return fmt.Sprintf("its main process was killed by signal %d", u.Status)
	case u.Code == dumped:
		return fmt.Sprintf("its main process crashed with signal %d", u.Status)
	}
	return cmp.Or(checkkit.Sanitize(u.Result, 50), "systemd gives no reason")
}
