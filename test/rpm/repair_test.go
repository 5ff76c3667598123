package rpm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// repairs sets the modes of repairs, with seconds instead of the minutes of a node.
func (m *machine) repairs(settings string) {
	m.t.Helper()
	m.write(configFile, "checks: {runtime-health: {every: 1s}, systemd-units: {every: 1s}}\n"+
		"repair:\n  minAge: 1s\n  hold: 3s\n  verifyWithin: 8s\n  unitAge: 2s\n  fleetBudget: none\n"+settings)
	m.run("systemctl", "reload", "nodeagent")
}

// repairJournal is the journal of repairs in the form for people.
func (m *machine) repairJournal() string {
	m.t.Helper()
	return m.run("nodeagent", "events")
}

// stepOf waits until the status contains want about a step of an action.
func (m *machine) stepOf(action, want string) {
	m.t.Helper()
	m.eventually(action+" to be "+want, func() error {
		s, err := m.askStatus()
		for _, step := range s.Repair.Steps {
			if text := fmt.Sprintf("%+v", step); step.Action == action && strings.Contains(text, want) {
				return nil
			}
		}
		if err == nil {
			err = fmt.Errorf("%+v", s.Repair)
		}
		return err
	})
}

// TestRestartUnit: the socket of a real containerd is lost, and a process with the name of a shim lives in the cgroup
// of its unit. The real systemd gets a restart request only with KillMode=process, and the shim survives that.
func TestRestartUnit(t *testing.T) {
	need.Flag(t, *long, "-long: takes three minutes, in which faults are believed, repaired and verified")
	t.Parallel()
	m := boot(t)
	m.startNode()
	m.witnesses()
	m.run("cp", "/bin/sleep", "/usr/bin/containerd-shim-runc-v2")
	m.write("/etc/systemd/system/containerd.service", "[Service]\nType=notify\nDelegate=yes\n"+
		"ExecStart=/bin/sh -c '/usr/bin/containerd-shim-runc-v2 infinity & exec /usr/bin/containerd'\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", "containerd")
	m.run("rm", "/run/containerd/containerd.sock") // before the agent is connected
	m.install()                                    // systemd drops a reload that is requested during the start
	m.repairs("  actions: {restart-unit: on}\n")
	show := func(property string) string {
		return strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", property, "containerd"))
	}
	main, shim := show("MainPID"), strings.TrimSpace(m.run("pgrep", "-o", "containerd-shim"))
	for mode, want := range map[string]string{
		"control-group": "restart would end 1 containers: containerd.service has KillMode=control-group",
		"mixed":         "restart would end 1 containers: containerd.service has KillMode=mixed",
		"none":          "KillMode=none: systemd would start it beside the old one",
	} {
		m.write("/etc/systemd/system/containerd.service.d/mode.conf", "[Service]\nKillMode="+mode+"\n")
		m.run("systemctl", "daemon-reload")
		m.stepOf("restart-unit", want)
		if now := show("MainPID"); now != main {
			t.Fatalf("%s: main process %s instead of %s", mode, now, main)
		}
	}
	// The real systemd is also asked which other units a restart would change.
	m.write("/etc/systemd/system/needs.service", "[Unit]\nRequisite=containerd.service\nAfter=containerd.service\n"+
		"[Service]\nExecStart=/bin/sleep infinity\n")
	for text, want := range map[string]string{
		"RuntimeDirectory=containerd\n":                             "RuntimeDirectory=containerd without",
		"[Unit]\nFailureAction=reboot\n":                            "FailureAction=reboot",
		"[Unit]\nSuccessAction=reboot\n":                            "SuccessAction=reboot",
		"[Unit]\nStartLimitAction=reboot\n":                         "StartLimitAction=reboot",
		"[Unit]\nJobTimeoutAction=reboot\nJobTimeoutSec=infinity\n": "JobTimeoutAction=reboot",
		"[Unit]\nOnFailure=rescue.target\n":                         "OnFailure=rescue.target",
		// It is named first, so that the unit is not restarted when that one is stopped.
		"RuntimeDirectory=x\n": "systemd would stop or restart needs.service",
	} {
		m.write("/etc/systemd/system/containerd.service.d/mode.conf", "[Service]\nKillMode=process\n"+text)
		m.run("systemctl", "daemon-reload")
		requisite := strings.Contains(want, "needs.service")
		if requisite {
			m.run("systemctl", "start", "needs")
		}
		m.stepOf("restart-unit", want)
		if now := show("MainPID"); now != main {
			t.Fatalf("%s: main process %s instead of %s", text, now, main)
		}
		if requisite {
			m.run("systemctl", "stop", "needs")
		}
	}
	m.write("/etc/systemd/system/containerd.service.d/mode.conf", "[Service]\nKillMode=process\nExecStartPre=/bin/true\n"+
		"RuntimeDirectory=kept\nRuntimeDirectoryPreserve=restart\n")
	m.run("systemctl", "daemon-reload")
	begin := time.Now() // it was found before
	m.eventually("the restart to be verified", func() error {
		if text := m.repairJournal(); !strings.Contains(text, "verified") {
			return errors.New(text)
		}
		return nil
	})
	t.Logf("repaired by restart-unit in %s", (time.Since(begin) - 3*time.Second).Round(100*time.Millisecond)) // without hold
	if now := show("MainPID"); now == main {
		t.Error("it was not restarted")
	}
	m.run("kill", "-0", shim)
	m.unitFinding("runtime-health", "/run/containerd/containerd.sock", "")

	// It dies, and a restart does not help: the agent tries once, and then leaves it to a person.
	m.write("/etc/containerd/config.toml", "this is no TOML\n")
	m.run("systemctl", "kill", "--kill-who=main", "-s", "KILL", "containerd")
	m.eventually("the restart to fail", func() error {
		if text := m.repairJournal(); !strings.Contains(text, ": failed: ") {
			return errors.New(text)
		}
		return nil
	})
	m.stepOf("restart-unit", "needs help: it was done once already")
	if text := m.repairJournal(); strings.Count(text, "restart-unit") != 2 {
		t.Error(text)
	}
}

// TestResetFailedUnits: a failed transient unit is reset; one with a file stays.
func TestResetFailedUnits(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.repairs("  actions: {reset-failed-units: on}\n")
	m.write("/etc/systemd/system/broken.service", "[Service]\nExecStart=/bin/false\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "broken")
	m.unitFinding("systemd-units", "broken.service", "warning UnitFailed")
	m.try("systemd-run", "--unit=run-gone", "/bin/false")
	m.eventually("the transient unit to be forgotten", func() error {
		if text := m.repairJournal(); !strings.Contains(text, "run-gone.service has failed: verified") {
			return errors.New(text)
		}
		return nil
	})
	m.fails(4, "systemctl", "status", "run-gone") // there is no such unit
	m.run("systemctl", "is-failed", "broken")
	if s := m.status(); len(s.Repair.Steps) > 0 {
		t.Errorf("%+v", s.Repair)
	}
}

// A unit is created again as soon as it is reset, and fails again: the agent notices that once, and then waits.
func TestResetFailedUnitsDoesNotHelp(t *testing.T) {
	need.Flag(t, *long, "-long: what is not undone is waited for")
	t.Parallel()
	m := boot(t)
	m.install()
	m.repairs("  actions: {reset-failed-units: on}\n")
	m.run("systemd-run", "--unit=again", "/bin/sh", "-c",
		"while sleep 0.1; do systemd-run --quiet --unit=run-again /bin/false; done")
	m.eventually("the repair to fail", func() error {
		text := m.repairJournal()
		if !strings.Contains(text, "run-again.service") || !strings.Contains(text, ": failed: ") {
			return errors.New(text)
		}
		return nil
	})
	m.stepOf("reset-failed-units", "next try after")
	if text := m.repairJournal(); strings.Count(text, "reset-failed-units") != 1 {
		t.Error(text)
	}
}
