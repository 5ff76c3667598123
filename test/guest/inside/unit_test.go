package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	service = "nodeagent.service"
	config  = "/etc/nodeagent/config.yaml"
	cgroup  = "/sys/fs/cgroup/system.slice/" + service
)

// installed is done once in each guest.
var installed sync.Once

// unit installs the agent like the package, with objects for its checks to observe, and starts its unit.
func unit(t *testing.T) *agent {
	t.Helper()
	needGuest(t)
	installed.Do(func() {
		furnish(t)
		install(t, "")
	})
	return await(t)
}

// install installs the agent like the package, with more settings, and starts its unit.
func install(t *testing.T, settings string) {
	t.Helper()
	run(t, "install", "-D", "-m", "755", *binary, "/usr/bin/nodeagent")
	run(t, "install", "-D", "-m", "644", filepath.Join(*repo, "systemd/nodeagent.service"), "/etc/systemd/system/"+
		service)
	run(t, "install", "-D", "-m", "640", filepath.Join(*repo, "packaging/rpm/config.yaml"), config)
	if settings != "" {
		put(t, config, settings)
	}
	run(t, "install", "-d", "-m", "700", "/var/lib/nodeagent")
	run(t, "systemctl", "daemon-reload")
	began := time.Now()
	run(t, "systemctl", "start", service)
	t.Logf("ready after %s", time.Since(began))
}

// await returns the agent of the unit once it answers.
func await(t *testing.T) *agent {
	t.Helper()
	a := &agent{t: t, config: config}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("journalctl", "--no-pager", "-n", "60", "-u", service).CombinedOutput()
			t.Logf("%s", out)
		}
	})
	if !exists("/etc/systemd/system/" + service) {
		t.Fatal("the unit could not be installed")
	}
	a.await(time.Minute, "the agent to answer", func(s status) bool { return s.PID != 0 && s.Readiness.Ready })
	return a
}

// furnish gives the guest objects for checks to observe: disks, an array, a pool, filesystems, a bond, connections, a
// certificate.
func furnish(t *testing.T) {
	t.Helper()
	for _, module := range []string{"nvme", "ahci", "sd_mod", "ext4", "xfs", "raid1", "dm-thin-pool", "bonding",
		"nf_conntrack", "fuse", "e1000"} {
		run(t, "modprobe", module)
	}
	run(t, "modprobe", "brd", "rd_nr=4", "rd_size=131072")
	for _, disk := range []string{"nvme0n1", "sda"} {
		eventually(t, disk, func() bool { return exists("/dev/" + disk) })
	}
	mounts := map[string]string{"mkfs.ext4 -q -F /dev/nvme0n1": "/run/tmp/nvme",
		"mkfs.xfs -q -f /dev/sda": "/run/tmp/xfs"}
	for mkfs, dir := range mounts {
		words := strings.Fields(mkfs)
		run(t, words[0], words[1:]...)
		run(t, "mkdir", "-p", dir)
		run(t, "mount", words[len(words)-1], dir)
	}
	run(t, "mdadm", "--create", "/dev/md0", "--run", "--level=1", "--raid-devices=2", "--metadata=1.2", "/dev/ram0",
		"/dev/ram1")
	run(t, "dmsetup", "create", "pool", "--table", "0 131072 thin-pool /dev/ram2 /dev/ram3 128 0")
	run(t, "ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "100")
	run(t, "ip", "link", "set", "bond0", "up")
	run(t, "mkdir", "-p", "/var/lib/kubelet/pki")
	run(t, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365",
		"-subj", "/O=system:nodes/CN=system:node:guest",
		"-keyout", "/run/tmp/key", "-out", "/var/lib/kubelet/pki/kubelet-client-current.pem")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// TestUnitIsNotBlind: under the restrictions of its unit the daemon sees the same as root without any.
func TestUnitIsNotBlind(t *testing.T) {
	a := unit(t)
	var free struct {
		Errors        []struct{ Check, Error string }
		NotApplicable []struct{ Check, Why string }
	}
	out, _ := exec.Command("nodeagent", "check", "-o", "json").Output() // its exit code depends on the findings
	if err := json.Unmarshal(out, &free); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	root := map[string]string{}
	for _, e := range free.Errors {
		root[e.Check] = "unknown"
		t.Logf("blind as root, too: %s: %s", e.Check, e.Error)
	}
	for _, n := range free.NotApplicable {
		root[n.Check] = "not-applicable"
	}
	ran, blind := 0, ""
	// a run that takes too long on a slow machine does not count as blind
	a.await(3*time.Minute, "a run of each check", func(s status) bool {
		ran, blind = 0, ""
		for _, c := range s.Checks {
			if c.Status != "not-applicable" && c.Status != "unknown" {
				ran++
			} else if root[c.Check] != c.Status && c.Check != "leftovers" { // "nodeagent inspect" looks for them
				blind += fmt.Sprintf("%s is %q in the unit and %q without it: %s%s\n", c.Check, c.Status, root[c.Check],
					c.Error, c.Why)
			}
		}
		return blind == "" || !strings.Contains(blind, "no answer within")
	})
	if blind != "" {
		t.Error(blind)
	}
	t.Logf("%d checks run, %d are not applicable", ran, len(free.NotApplicable))
	for _, check := range []string{"time-sync", "kubelet-certificates", "disk-health", "nvme-health", "md-arrays",
		"thin-pools", "bonds", "conntrack", "filesystem-readonly", "packet-filter"} {
		if root[check] != "" {
			t.Logf("%s is not applicable in this guest", check)
		}
	}
}

// TestUnitLimits: the limits of the unit are those of its cgroup and of the process.
func TestUnitLimits(t *testing.T) {
	a := unit(t)
	pid := a.status().PID
	for file, want := range map[string]string{
		cgroup + "/memory.max":                     "268435456",
		cgroup + "/memory.high":                    "134217728",
		cgroup + "/memory.swap.max":                "67108864",
		cgroup + "/cpu.max":                        "50000 100000",
		cgroup + "/cpu.weight":                     "200",
		cgroup + "/pids.max":                       "256",
		fmt.Sprintf("/proc/%d/oom_score_adj", pid): "-900",
	} {
		if got := read(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	for _, file := range []string{"memory.current", "memory.peak", "memory.stat", "pids.current", "cpu.stat"} {
		text := read(cgroup + "/" + file)
		t.Logf("%s: %s", file, strings.ReplaceAll(text[:min(len(text), 160)], "\n", " "))
	}
}

// TestUnitComesBack: an agent that is killed, runs out of memory or hangs is restarted, and still believes the same.
func TestUnitComesBack(t *testing.T) {
	a := unit(t)
	dropIn := "/etc/systemd/system/" + service + ".d/test.conf"
	run(t, "mkdir", "-p", filepath.Dir(dropIn))
	// otherwise the test takes a minute
	if err := os.WriteFile(dropIn, []byte("[Service]\nWatchdogSec=10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "restart", service)
	a.await(time.Minute, "the agent to be ready", func(s status) bool { return s.Readiness.Ready })
	put(t, "/sys/fs/ext4/nvme0n1/trigger_fs_error", "test")
	a.awaitReason("filesystem-readonly", "", "", true)
	for _, end := range []struct {
		name, says string
		do         func(pid string)
	}{
		{"kill -9", "status=9/KILL", func(pid string) { run(t, "kill", "-9", pid) }},
		{"out of memory", "killed by the OOM killer", func(string) { put(t, cgroup+"/memory.max", "1000000") }},
		{"stopped", "Watchdog timeout", func(pid string) { run(t, "kill", "-STOP", pid) }},
	} {
		before := a.status()
		began := time.Now()
		end.do(fmt.Sprint(before.PID))
		a.await(time.Minute, "another agent to answer after "+end.name, func(s status) bool {
			return s.PID != 0 && s.PID != before.PID
		})
		t.Logf("%s: another agent answers after %s", end.name, time.Since(began))
		a.await(time.Minute, "it to be ready", func(s status) bool { return s.Readiness.Ready })
		t.Logf("%s: it is ready after %s", end.name, time.Since(began))
		if got := read(cgroup + "/memory.max"); got != "268435456" {
			t.Errorf("%s: the next agent's memory.max is %s", end.name, got)
		}
		if want, got := since(before, "filesystem-readonly"), since(a.status(), "filesystem-readonly"); want == "" ||
			got != want {
			t.Errorf("%s: it believed %q, and now %q", end.name, want, got)
		}
		if log := run(t, "journalctl", "--no-pager", "-b", "-u", service); !strings.Contains(log, end.says) {
			t.Errorf("%s: systemd does not say %q:\n%s", end.name, end.says, log)
		}
	}
}

// since returns reason, identity and start of a check's findings.
func since(s status, check string) string {
	var found []string
	for _, f := range s.Findings {
		if f.Check == check {
			found = append(found, fmt.Sprintf("%s %s since %s", f.Reason, f.ID, f.Raised.Wall))
		}
	}
	return strings.Join(found, ", ")
}
