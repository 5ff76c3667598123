package rpm_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

const quickChecks = "checks:\n  systemd-units:\n    every: 1s\n  runtime-restarts:\n    every: 1s\n"

// unitFinding waits until the agent reports this about a subject, as "severity Reason"; empty: no finding.
func (m *machine) unitFinding(check, subject, want string) {
	m.t.Helper()
	last := ""
	m.eventually(fmt.Sprintf("%s of %s to be %q", check, subject, want), func() error {
		got, message, err := m.askFinding(check, subject)
		last = message
		if err == nil && got != want {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	if want != "" {
		m.t.Log(last)
	}
}

// unitFindingNow is the same, without waiting.
func (m *machine) unitFindingNow(check, subject, want string) {
	m.t.Helper()
	got, message, err := m.askFinding(check, subject)
	if err != nil || got != want {
		m.t.Errorf("%s of %s: got %q (%s), error %v, want %q", check, subject, got, message, err, want)
	}
}

func (m *machine) askFinding(check, subject string) (what, message string, err error) {
	s, err := m.askStatus()
	for _, f := range s.Findings {
		if f.Check == check && f.Subject.Name == subject {
			return f.Severity + " " + f.Reason, f.Message, err
		}
	}
	return "", "", err
}

// TestUnits: one unit fails, one crashes in a loop, a timer's job fails, all for real, and each recovers.
func TestUnits(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, quickChecks)
	m.run("systemctl", "reload", "nodeagent")

	m.service("broken", "ExecStart=/bin/sh -c 'exit 7'\n")
	m.run("systemctl", "start", "broken")
	m.unitFinding("systemd-units", "broken.service", "warning UnitFailed")
	m.service("broken", "ExecStart=/bin/sleep infinity\n")
	m.run("systemctl", "start", "broken")
	m.unitFinding("systemd-units", "broken.service", "")
	m.run("systemctl", "kill", "-s", "SEGV", "broken")
	m.unitFinding("systemd-units", "broken.service", "warning UnitFailed")
	m.run("systemctl", "reset-failed", "broken")
	m.unitFinding("systemd-units", "broken.service", "")

	m.service("loop", "ExecStart=/bin/sh -c 'sleep 1.5; exit 1'\nRestart=always\nRestartSec=500ms\n")
	m.run("systemctl", "start", "loop")
	m.unitFinding("systemd-units", "loop.service", "warning UnitFlapping")
	m.run("systemctl", "stop", "loop")
	m.unitFinding("systemd-units", "loop.service", "")

	m.service("job", "Type=oneshot\nExecStart=/bin/false\n")
	m.write("/etc/systemd/system/job.timer", "[Timer]\nOnActiveSec=1s\nAccuracySec=100ms\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "job.timer")
	m.unitFinding("systemd-units", "job.service", "info UnitFailed")
	m.run("systemctl", "reset-failed", "job.service")
	m.unitFinding("systemd-units", "job.service", "")
}

// TestUnitAtOnce: a failed unit is found because systemd signals it, however rarely the check runs.
func TestUnitAtOnce(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, "checks:\n  systemd-units:\n    every: 24h\n")
	m.run("systemctl", "restart", "nodeagent")
	m.awaitReady() // the observations of the agent's start
	m.unitFinding("source-systemd", "systemd", "")
	m.service("broken", "ExecStart=/bin/sleep infinity\n")
	m.run("systemctl", "start", "broken")
	m.run("systemctl", "kill", "-s", "SEGV", "broken")
	m.unitFinding("systemd-units", "broken.service", "warning UnitFailed")
	m.run("systemctl", "start", "broken")
	m.unitFinding("systemd-units", "broken.service", "")
	m.write("/etc/systemd/system/opt.mount", "[Mount]\nWhat=/dev/none\nWhere=/opt\nType=ext4\n")
	m.run("systemctl", "daemon-reload")
	m.try("systemctl", "start", "opt.mount")
	m.unitFinding("systemd-units", "opt.mount", "warning UnitFailed")
}

// TestUnitStorm: a unit that is started all the time costs almost no CPU time, whether it fails, or succeeds and is
// only reported once it was started too often.
func TestUnitStorm(t *testing.T) {
	need.Flag(t, *long, "-long: processor time is measured, with nothing beside it")
	m := boot(t)
	m.install()
	for _, program := range []string{"/bin/false", "/bin/true"} {
		m.service("flaps", "ExecStart="+program+"\nRestart=always\nRestartSec=0\n")
		m.run("systemctl", "start", "nodeagent")
		m.run("systemctl", "restart", "flaps")
		<-time.After(10 * time.Second)
		with, starts := m.measure(15 * time.Second)
		m.run("systemctl", "stop", "nodeagent")
		without, others := m.measure(15 * time.Second)
		t.Logf("%s: CPU in 15 s: with the agent %v and %d starts, without it %v and %d", program, with, starts, without,
			others)
		if with["agent"] > time.Second || starts < 100 {
			t.Errorf("%s was started %d times in 15 s, and the agent used %v", program, starts, with["agent"])
		}
	}
}

// service writes a unit without a start limit.
func (m *machine) service(name, rest string) {
	m.t.Helper()
	m.write("/etc/systemd/system/"+name+".service", "[Unit]\nStartLimitIntervalSec=0\n[Service]\n"+rest)
	m.run("systemctl", "daemon-reload")
}

// measure returns the CPU time used meanwhile, and how often the service flaps was started.
func (m *machine) measure(d time.Duration) (used map[string]time.Duration, starts int) {
	m.t.Helper()
	read := func() (map[string]time.Duration, int) {
		ticks := func(pid string) time.Duration {
			fields := strings.Fields(m.try("cat", "/proc/"+pid+"/stat").stdout)
			if len(fields) < 15 {
				return 0
			}
			user, _ := strconv.Atoi(fields[13])
			kernel, _ := strconv.Atoi(fields[14])
			return time.Duration(user+kernel) * 10 * time.Millisecond
		}
		pid := func(unit string) string {
			return strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", "MainPID", unit))
		}
		restarts, _ := strconv.Atoi(strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", "NRestarts",
			"flaps")))
		return map[string]time.Duration{"systemd": ticks("1"), "dbus": ticks(pid("dbus")),
			"agent": ticks(pid("nodeagent"))}, restarts
	}
	before, first := read()
	<-time.After(d)
	after, last := read()
	for name := range after {
		after[name] -= before[name]
	}
	return after, last - first
}

// TestSystemdStops: PID 1 hangs, and continues.
func TestSystemdStops(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, quickChecks)
	m.run("systemctl", "reload", "nodeagent")
	pid, err := m.init()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // before the machine is halted
	m.unitFinding("systemd-units", "systemd", "warning SystemdNotAnswering")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.unitFinding("systemd-units", "systemd", "")
}

// TestSystemdOverTheBus: a systemd without its own socket.
func TestSystemdOverTheBus(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, quickChecks)
	m.run("systemctl", "reload", "nodeagent")
	m.run("mv", "/run/systemd/private", "/run/systemd/away")
	m.try("systemd-run", "--unit=broken", "/bin/false")
	m.unitFinding("systemd-units", "broken.service", "info UnitFailed") // it is transient
	m.run("mv", "/run/systemd/away", "/run/systemd/private")
	m.run("systemctl", "reset-failed", "broken")
	m.unitFinding("systemd-units", "broken.service", "")
}

const (
	containerdConfig = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"
	containerdSocket = "/run/containerd/containerd.sock"
)

// startContainerd starts a real containerd as a service, and the agent.
func (m *machine) startContainerd() {
	m.t.Helper()
	program := need.Program(m.t, "containerd")
	copyFile(m.t, program, filepath.Join(m.root, "usr/bin/containerd"))
	m.run("chmod", "0755", "/usr/bin/containerd")
	m.write("/etc/containerd/config.toml", containerdConfig)
	m.write("/etc/systemd/system/containerd.service",
		"[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/usr/bin/containerd\nRestart=always\nRestartSec=200ms\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "containerd")
	m.install()
	m.write(configFile, quickChecks)
	m.run("systemctl", "reload", "nodeagent")
	m.containerdSeen("0")
}

// containerdSeen waits until another containerd than old serves its socket and the agent has observed it, and returns
// its PID.
func (m *machine) containerdSeen(old string) string {
	m.t.Helper()
	pid := ""
	m.eventually("another containerd", func() error {
		pid = strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", "MainPID", "containerd"))
		if pid == "0" || pid == old {
			return errors.New("none")
		}
		conn, err := net.Dial("unix", filepath.Join("/proc", strconv.Itoa(m.outside("/usr/bin/containerd")), "root",
			containerdSocket))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	<-time.After(2500 * time.Millisecond) // two runs of the check
	return pid
}

// TestRuntimeRestarts: a real containerd is killed repeatedly.
func TestRuntimeRestarts(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.startContainerd()
	pid := "0"
	for range 5 {
		pid = m.containerdSeen(pid)
		m.unitFindingNow("runtime-restarts", containerdSocket, "")
		m.run("kill", "-9", pid)
	}
	m.unitFinding("runtime-restarts", containerdSocket, "warning RuntimeRestartsOften")
	m.run("systemctl", "restart", "nodeagent")
	m.unitFinding("runtime-restarts", containerdSocket, "warning RuntimeRestartsOften")
}

// TestRuntimeDiesAtStart: containerd exits before it listens, so only systemd knows about its restarts.
func TestRuntimeDiesAtStart(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.startContainerd()
	m.write("/etc/containerd/config.toml", "this is no TOML\n")
	m.run("systemctl", "kill", "-s", "KILL", "containerd")
	m.unitFinding("runtime-restarts", containerdSocket, "warning RuntimeRestartsOften")
	m.unitFinding("systemd-units", "containerd.service", "warning UnitFlapping")
	m.run("systemctl", "stop", "containerd")
	m.try("systemctl", "reset-failed", "containerd") // if systemd gave it up before
	m.unitFinding("systemd-units", "containerd.service", "")
}

// TestJournald: journald is stopped and continues; it is killed, and finds that its file was not closed.
func TestJournald(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.run("mkdir", "-p", "/var/log/journal")
	m.run("systemctl", "restart", "systemd-journald")
	m.run("journalctl", "--flush")
	m.install()
	m.write(configFile, "checks:\n  journald:\n    every: 1s\n")
	m.run("systemctl", "reload", "nodeagent")
	m.unitFindingNow("journald", "systemd-journald.service", "")
	pid := strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", "MainPID", "systemd-journald"))
	m.run("kill", "-STOP", pid)
	m.unitFinding("journald", "systemd-journald.service", "warning JournaldStopped")
	m.run("kill", "-CONT", pid)
	m.unitFinding("journald", "systemd-journald.service", "")

	awaitUptime(t, 10*time.Minute+time.Second) // files renamed before do not count
	m.run("kill", "-KILL", pid)
	m.eventually("journald to begin another file", func() error {
		if out := m.try("sh", "-c", "ls /var/log/journal/*/system@*.journal~"); out.code != 0 {
			return errors.New(out.stderr)
		}
		return nil
	})
	m.run("systemctl", "restart", "nodeagent") // it checks the files every ten minutes
	m.unitFinding("journald", "system", "info JournalDamaged")
	m.run("sh", "-c", "rm /var/log/journal/*/system@*.journal~")
	m.run("systemctl", "restart", "nodeagent")
	m.unitFinding("journald", "system", "")
}

// awaitUptime waits until the kernel, which the containers share, has run for that long.
func awaitUptime(t *testing.T, least time.Duration) {
	t.Helper()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(least - time.Duration(info.Uptime)*time.Second):
	case <-t.Context().Done():
	}
}

// A daemon that the node needs is stopped by a signal, by a debugger or by mistake: systemd calls it active, the agent
// does not.
func TestDaemonIsStopped(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write(configFile, "checks:\n  daemon-stopped:\n    every: 1s\n")
	m.run("systemctl", "reload", "nodeagent")
	for program, daemon := range map[string]string{"systemd-journald": "systemd-journal", "dbus-daemon": "dbus-daemon"} {
		pid := strings.Fields(m.run("pidof", program))[0]
		m.run("kill", "-STOP", pid)
		m.unitFinding("daemon-stopped", daemon, "warning DaemonStopped")
		m.run("kill", "-CONT", pid)
		m.unitFinding("daemon-stopped", daemon, "")
	}
}
