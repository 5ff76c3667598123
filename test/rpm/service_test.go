package rpm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestReboot(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.try("systemctl", "reboot") // its answer may be cut off
	select {
	case <-m.ended:
	case <-time.After(patience):
		t.Fatal("the machine does not go down")
	}
	const restart = 133 // EXIT_FORCE_RESTART: systemd-nspawn leaves the second half of a reboot to its caller
	if got := m.nspawn.ProcessState.ExitCode(); got != restart {
		t.Fatalf("systemd-nspawn ended with %d, want %d", got, restart)
	}
	m.start()
	m.settle()
	m.awaitReady()
}

// crash ends the agent in some way and waits until another one answers.
func crash(m *machine, pid string, end func()) {
	m.t.Helper()
	began := time.Now()
	end()
	m.eventually("another agent to answer", func() error {
		s, err := m.askStatus()
		if err == nil && strconv.Itoa(s.PID) == pid {
			err = errors.New("the old one answers")
		}
		return err
	})
	m.t.Logf("another agent answers after %s", time.Since(began))
}

// logged waits until the journal of the service has a text: journald writes messages with a delay.
func (m *machine) logged(text string) {
	m.t.Helper()
	m.eventually(text+" in the journal", func() error {
		if log := m.run("journalctl", "--no-pager", "-u", "nodeagent"); !strings.Contains(log, text) {
			return errors.New(tail(log))
		}
		return nil
	})
}

func TestCrash(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write("/etc/nodeagent/config.yaml", "no such key: 1\n") // a lasting fault
	m.fails(1, "nodeagent", "reload")
	m.eventually("the finding", func() error {
		if len(findings(m.status(), "agent-config")) != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	before := findings(m.status(), "agent-config")
	if len(before) != 1 || !strings.HasPrefix(before[0], "AgentConfigInvalid ") {
		t.Fatalf("findings: %v", before)
	}
	m.eventually("the state to be saved", func() error {
		return m.saved("agent-config", "AgentConfigInvalid")
	})
	pid := m.property("MainPID")
	crash(m, pid, func() { m.run("kill", "-9", pid) })
	m.eventually("the first run of every check", func() error {
		if m.property("ActiveState") != "active" {
			return errors.New("not active")
		}
		return nil
	})
	if diff := cmp.Diff(before, findings(m.status(), "agent-config")); diff != "" {
		t.Errorf("the finding has changed by the crash (-before +after):\n%s", diff)
	}
	if got := m.property("NRestarts"); got != "1" {
		t.Errorf("%s restarts", got)
	}
}

// saved returns nil if the agent's state file has a finding of a check, in a complete transaction.
func (m *machine) saved(check, reason string) error {
	file := filepath.Join(m.t.TempDir(), "state.db")
	copyFile(m.t, filepath.Join(m.root, "var/lib/nodeagent/state.db"), file)
	copied, err := store.Open(file)
	if err != nil {
		return err
	}
	defer copied.Close()
	if text, _ := copied.Bucket("checks").Get(check); !strings.Contains(string(text), reason) {
		return errors.Join(errors.New("not in the state file"), copied.Trouble())
	}
	return nil
}

// findings returns reason, identity and start of a check's findings.
func findings(s agentStatus, check string) []string {
	var found []string
	for _, f := range s.Findings {
		if f.Check == check {
			found = append(found, fmt.Sprintf("%s %s since %s", f.Reason, f.ID, f.Raised.Wall))
		}
	}
	return found
}

// A child of the agent that hangs in the kernel cannot be killed. The node must get a new agent nevertheless.
func TestCrashWithAnUnkillableChild(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	freezer := "/sys/fs/cgroup/freezer/nodeagent-rpm-" + strconv.Itoa(os.Getpid())
	need.Kernel(t, "the freezer of cgroup v1, whose tasks ignore SIGKILL", os.Mkdir(freezer, 0o755))
	child := 0
	t.Cleanup(func() {
		put(t, freezer+"/freezer.state", "THAWED")
		if child != 0 {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
		m.eventually("the frozen child to end", func() error { return os.Remove(freezer) })
	})
	child = hangInService(t, m, freezer)
	pid := m.property("MainPID")
	crash(m, pid, func() { m.run("kill", "-9", pid) })
	if syscall.Kill(child, 0) != nil {
		t.Error("the child was no hindrance: it is dead")
	}
}

// hangInService puts a frozen process into the cgroup of the service and returns its PID outside the machine.
func hangInService(t *testing.T, m *machine, freezer string) int {
	t.Helper()
	m.run("sh", "-c", "setsid sleep 43210 >/dev/null 2>&1 &")
	pid := m.outside("sleep", "43210")
	for _, cgroup := range m.cgroups {
		put(t, filepath.Join(cgroup, "payload/system.slice/nodeagent.service/cgroup.procs"), strconv.Itoa(pid))
	}
	put(t, freezer+"/cgroup.procs", strconv.Itoa(pid))
	put(t, freezer+"/freezer.state", "FROZEN")
	return pid
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		t.Error(err)
	}
}

// The kernel itself ends the agent here, because its cgroup has no memory left.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	memory := "/sys/fs/cgroup/memory/nodeagent-rpm-" + strconv.Itoa(os.Getpid())
	need.Kernel(t, "the memory controller of cgroup v1: inside of the machine systemd has none",
		os.Mkdir(memory, 0o755))
	t.Cleanup(func() {
		m.eventually("the cgroup to be empty", func() error { return os.Remove(memory) })
	})
	pid := m.property("MainPID")
	outside := m.outside("/usr/bin/nodeagent", "run")
	crash(m, pid, func() {
		put(t, memory+"/memory.limit_in_bytes", "4096")
		put(t, memory+"/cgroup.procs", strconv.Itoa(outside))
	})
	m.logged("status=9/KILL")
	if text, _ := os.ReadFile(memory + "/memory.oom_control"); !strings.Contains(string(text), "oom_kill 1") {
		t.Errorf("not by the kernel: %s", text)
	}
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.write("/etc/systemd/system/nodeagent.service.d/test.conf", "[Service]\nWatchdogSec=10\nTimeoutAbortSec=1\n")
	m.install()
	pid := m.property("MainPID")
	var active, fed int64 // microseconds
	scan(t, m.property("ActiveEnterTimestampMonotonic"), &active)
	m.eventually("a sign of life after two periods", func() error {
		if scan(t, m.property("WatchdogTimestampMonotonic"), &fed); fed-active < 20_000_000 {
			return fmt.Errorf("fed %d µs after the start", fed-active)
		}
		return nil
	})
	if got := m.property("MainPID"); got != pid {
		t.Fatalf("the watchdog ended an agent that works")
	}
	crash(m, pid, func() { m.run("kill", "-STOP", pid) })
	m.logged("Watchdog timeout")
}

func TestStandsBackBehindAnotherAgent(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.run("systemctl", "stop", "nodeagent")
	m.run("systemd-run", "--quiet", "--unit=other", "/usr/bin/nodeagent", "run")
	m.awaitReady() // the other one answers
	m.run("systemctl", "start", "--no-block", "nodeagent")
	m.eventually("the service to stand back", func() error {
		if state, text := m.property("ActiveState"), m.property("StatusText"); state != "activating" ||
			!strings.HasPrefix(text, "on standby: another agent runs on this node") {
			return fmt.Errorf("%s: %s", state, text)
		}
		return nil
	})
	m.run("systemctl", "stop", "other")
	m.eventually("the service to take over", func() error {
		if state := m.property("ActiveState"); state != "active" {
			return errors.New(state)
		}
		return nil
	})
}

func TestUnit(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	if out := m.try("systemd-analyze", "verify", "--man=no",
		"/usr/lib/systemd/system/nodeagent.service"); out.code != 0 || out.stderr != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	pid := m.property("MainPID")
	for _, namespace := range []string{"mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		if got := m.run("readlink", "/proc/1/ns/"+namespace, "/proc/"+pid+"/ns/"+namespace); !sameLines(got) {
			t.Errorf("the agent has its own namespace %s:\n%s", namespace, got)
		}
	}
	// RestrictSUIDSGID=yes blocks openat2, which every release needs: TestReleaseOnSystemdHost.
	for name, want := range map[string]string{"RestrictSUIDSGID": "no", "MemoryMax": "268435456",
		"CPUQuotaPerSecUSec": "500ms", "OOMScoreAdjust": "-900", "Restart": "always", "WatchdogUSec": "1min",
		"Type": "notify", "StartLimitIntervalUSec": "0", "TimerSlackNSec": "1000000"} {
		if got := m.property(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	after := strings.Fields(m.property("After"))
	for _, unit := range after {
		if strings.Contains(unit, "kubelet") || strings.Contains(unit, "containerd") ||
			strings.Contains(unit, "network") {
			t.Errorf("the agent waits for %s", unit)
		}
	}
}

func sameLines(text string) bool {
	a, b, ok := strings.Cut(strings.TrimSpace(text), "\n")
	return ok && a == b
}

// The restrictions of the unit must permit the agent's work: each of these commands runs under them.
func TestTheUnitMayDoItsWork(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	unit := m.read("/usr/lib/systemd/system/nodeagent.service")
	var kept []string
	for line := range strings.Lines(unit) {
		key, _, _ := strings.Cut(line, "=")
		switch key {
		case "ExecStart", "ExecReload", "Type", "NotifyAccess", "Restart", "RestartSec", "WatchdogSec",
			"WatchdogSignal", "RuntimeDirectory", "WantedBy":
		default:
			kept = append(kept, line)
		}
	}
	for name, test := range map[string]struct {
		does string
		may  bool
	}{
		"unmount on the host":              {"/usr/bin/umount /mnt", true},
		"enter a network namespace":        {"/usr/bin/nsenter --net=/proc/1/ns/net /usr/bin/true", true},
		"read another process's files":     {"/usr/bin/readlink /proc/1/fd/0", true},
		"remove a directory of a pod":      {"/usr/bin/rmdir /srv/of-a-user/empty", true},
		"kill a process of another user":   {"/usr/bin/pkill -u nobody sleep", true},
		"load a module":                    {"/usr/sbin/insmod /dev/null", false},
		"make a device":                    {"/usr/bin/mknod /srv/device b 7 0", false},
		"set the clock":                    {"/usr/bin/date -s 2001-01-01", false},
		"change the owner of what it sees": {"/usr/bin/chown nobody /srv", false},
	} {
		t.Run(name, func(t *testing.T) {
			m.run("sh", "-c", "mount -t tmpfs none /mnt; mkdir -p /srv/of-a-user/empty; chown nobody /srv/of-a-user; "+
				"setpriv --reuid=65534 setsid sleep 100 >/dev/null 2>&1 &")
			m.write("/etc/systemd/system/twin.service", strings.Join(kept, "")+"\n[Service]\nType=oneshot\nExecStart="+
				test.does+"\n")
			m.run("systemctl", "daemon-reload")
			out := m.try("systemctl", "start", "twin")
			if may := out.code == 0; may != test.may {
				t.Errorf("%s: may %v, want %v: %s", test.does, may, test.may, m.try("journalctl", "--no-pager", "-n",
					"5", "-u", "twin"))
			}
			m.try("umount", "/mnt")
		})
	}
}

// The agent must report a read-only disk, so the disk must not keep it from starting, even if its own directory is
// lost. With StateDirectory= in the unit this fails with 238/STATE_DIRECTORY.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.run("systemctl", "stop", "nodeagent")
	m.run("sh", "-c", "rm -r /var/lib/nodeagent && mount --bind /var /var && mount -o remount,ro,bind /var")
	m.run("systemctl", "start", "nodeagent")
	m.awaitReady()
	if got := findings(m.status(), "agent-state"); len(got) != 1 || !strings.HasPrefix(got[0], "StateNotSafe ") {
		t.Errorf("findings: %v", got)
	}
}
