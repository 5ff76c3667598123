package rpm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

const (
	configFile = "/etc/nodeagent/config.yaml"
	good       = "remediate:\n  mode: \"on\"\n"
	bad        = "remediate:\n  mode: \"on\"\n  podsPerHour: many\n"
)

func TestReload(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	pid := m.property("MainPID")
	m.write(configFile, "checks:\n  load:\n    enabled: false\n")
	if why := m.fails(1, "nodeagent", "ready"); !strings.Contains(why.stdout, "not in force yet") {
		t.Errorf("ready before the reload: %s", why)
	}
	m.run("systemctl", "reload", "nodeagent")
	m.awaitReady()
	if hasCheck(m.status(), "load") {
		t.Error("the new configuration is not in force")
	}
	m.write(configFile, "")
	m.run("kill", "-HUP", pid)
	m.awaitReady()
	if !hasCheck(m.status(), "load") {
		t.Error("SIGHUP did not put the new configuration in force")
	}
	if got := m.property("MainPID"); got != pid {
		t.Errorf("the agent was restarted: %s became %s", pid, got)
	}
}

// slowStart stops the agent and delays its next start until goOn is called, by a plugin that waits. It returns the
// configuration with the plugin.
func (m *machine) slowStart() (slow string, goOn func()) {
	m.t.Helper()
	m.run("systemctl", "stop", "nodeagent")
	m.write("/usr/lib/waits", "#!/bin/sh\nuntil test -e /srv/go-on; do sleep 0.1; done\n")
	m.run("chmod", "755", "/usr/lib/waits")
	m.write("/etc/waits.json", `{"plugin": "custom", "source": "waits", "pluginConfig": {"invoke_interval": "1m",
"timeout": "5m", "enable_message_change_based_condition_update": false}, "conditions": [],
"rules": [{"type": "temporary", "reason": "Waits", "path": "/usr/lib/waits", "timeout": "5m"}]}`)
	slow = "nodeProblemDetector: {files: [/etc/waits.json]}\n"
	m.write(configFile, slow)
	return slow, func() { m.write("/srv/go-on", "") }
}

// A plugin may take longer than systemd's start timeout: the agent asks for more time, and gives the reason.
func TestSlowPluginDoesNotEndTheStart(t *testing.T) {
	need.Flag(t, *long, "-long: systemd's patience is waited for")
	t.Parallel()
	m := boot(t)
	m.install()
	_, goOn := m.slowStart()
	m.write("/etc/systemd/system/nodeagent.service.d/patience.conf", "[Service]\nTimeoutStartSec=40\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "--no-block", "nodeagent")
	m.eventually("the agent to say what it waits for", func() error {
		if text := m.property("StatusText"); !strings.Contains(text, "npd-waits") {
			return errors.New(text)
		}
		return nil
	})
	pid := m.property("MainPID")
	m.pass(30 * time.Second) // beyond systemd's timeout
	if state := m.property("ActiveState"); state != "activating" || m.property("MainPID") != pid {
		t.Errorf("the start did not go on: %s, %s restarts", state, m.property("NRestarts"))
	}
	goOn()
	m.awaitReady()
	if now := m.property("MainPID"); now != pid {
		t.Errorf("the agent was started again: %s became %s", pid, now)
	}
}

// systemd merges a reload during the start of the unit into the start. The file's content at the end of the start is in
// force nevertheless.
func TestReloadDuringTheStart(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	slow, goOn := m.slowStart()
	m.run("systemctl", "start", "--no-block", "nodeagent")
	m.eventually("the agent to have read its configuration", func() error {
		_, err := m.askStatus()
		return err
	})
	m.write(configFile, slow+"checks:\n  load:\n    enabled: false\n")
	m.run("systemctl", "reload", "--no-block", "nodeagent")
	if state := m.property("ActiveState"); state != "activating" {
		t.Fatalf("the start has ended: %s", state)
	}
	goOn()
	m.eventually("the new configuration to be in force", func() error {
		s, err := m.askStatus()
		if err == nil && hasCheck(s, "load") {
			err = errors.New("the old one is")
		}
		return err
	})
	m.awaitReady()
}

func TestReloadOfABadConfiguration(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, good)
	m.run("systemctl", "reload", "nodeagent")
	pid := m.property("MainPID")
	for name, text := range map[string]string{
		configFile + ":3: ":  bad,
		"without a restart":  "stateDir: /srv\n",
		"did not find expec": "a: [\n",
	} {
		m.write(configFile, text)
		m.fails(1, "systemctl", "reload", "nodeagent")
		if out := m.fails(1, "nodeagent", "reload"); !strings.Contains(out.stderr, name) {
			t.Errorf("want %q: %s", name, out)
		}
		if out := m.fails(1, "nodeagent", "ready"); !strings.Contains(out.stdout, name) ||
			!strings.Contains(out.stdout, "works with the version that was in force before") {
			t.Errorf("want %q: %s", name, out)
		}
		m.eventually("the finding", func() error { // its check runs after the answer
			if got := findings(m.status(), "agent-config"); len(got) != 1 ||
				!strings.HasPrefix(got[0], "AgentConfigInvalid ") {
				return fmt.Errorf("findings: %v", got)
			}
			return nil
		})
	}
	if s := m.status(); s.Release.Mode != "on" || m.property("MainPID") != pid ||
		m.property("ActiveState") != "active" {
		t.Errorf("the old configuration is not in force: %+v", s)
	}
	m.write(configFile, good+"\n# corrected\n")
	m.run("systemctl", "reload", "nodeagent")
	m.awaitReady()
	m.eventually("the finding to clear", func() error {
		if got := findings(m.status(), "agent-config"); len(got) != 0 {
			return fmt.Errorf("findings after the correction: %v", got)
		}
		return nil
	})
}

func TestStartWithABadConfiguration(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, good)
	m.run("systemctl", "reload", "nodeagent")
	m.write(configFile, bad)
	expect := func(instead string) {
		t.Helper()
		if out := m.fails(1, "nodeagent", "ready"); !strings.Contains(out.stdout, configFile+":3: ") ||
			!strings.Contains(out.stdout, "works with "+instead+", and does not release leftovers") {
			t.Errorf("ready: %s", out)
		}
		s := m.status()
		if got := findings(s, "agent-config"); len(got) != 1 || !strings.HasPrefix(got[0], "AgentConfigInvalid ") {
			t.Errorf("findings: %v", got)
		}
		if s.Release.Mode != "dry-run" {
			t.Errorf("releases are %s, want dry-run: what was wanted is unknown", s.Release.Mode)
		}
	}
	m.run("systemctl", "restart", "nodeagent")
	expect("the last good configuration")

	// An upgrade is a restart too. The package prints the errors and does not stop the agent.
	out := m.try("rpm", "-U", "--nodeps", inMachine(newer))
	if out.code != 0 || !strings.Contains(out.stderr, configFile+":3: ") ||
		!strings.Contains(out.stderr, "until this is corrected") {
		t.Errorf("upgrade: %s", out)
	}
	m.eventually("the new version to run", func() error {
		s, err := m.askStatus()
		if err == nil && (s.Version != newer+"-1" || m.property("ActiveState") != "active") {
			err = fmt.Errorf("version %s", s.Version)
		}
		return err
	})
	expect("the last good configuration")

	m.run("rm", "/var/lib/nodeagent/last-good.yaml")
	m.run("systemctl", "restart", "nodeagent")
	expect("the defaults")

	m.write(configFile, good)
	m.run("systemctl", "reload", "nodeagent")
	m.awaitReady()
	if s := m.status(); s.Release.Mode != "on" || len(findings(s, "agent-config")) != 0 {
		t.Errorf("after the correction: %+v", s)
	}
}

// A run by hand does not start with a wrong configuration.
func TestRunByHandIsStrict(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.run("systemctl", "stop", "nodeagent")
	m.write(configFile, bad)
	if out := m.fails(2, "nodeagent", "run"); !strings.Contains(out.stderr, configFile+":3: ") {
		t.Errorf("run: %s", out)
	}
	if out := m.fails(1, "nodeagent", "ready"); !strings.Contains(out.stdout, "no agent answers on") {
		t.Errorf("ready: %s", out)
	}
}
