package inside

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// crash is a fault of the kernel itself, and its expected report.
type crash struct {
	make   string // in the module guest_faults
	rule   string
	says   string // in the kernel's line
	reason string
	grade  string
	lasts  bool // until the next boot
}

// crashes are in the order of the test: after an oops the kernel no longer looks for hung tasks.
func crashes() []crash {
	return []crash{
		// the check hung-tasks reports it later
		{"hung 90", "task-hung", "INFO: task guest-hung:", "", "", false},
		{"warn", "kernel-warning", "guest_faults", "KernelWarning", "info", false},
		{"atomic", "kernel-bug", "scheduling while atomic: guest-atomic/", "KernelBug", "warning", false},
		{"no-page", "page-allocation-failure", "guest-no-page: page allocation failure", "PageAllocationFailure",
			"warning", false},
		{"realtime 3", "realtime-throttled", "RT throttling activated", "RealtimeThrottled", "warning", false},
		{"bad-page", "kernel-memory-corruption", "Bad page state in process guest-bad-page", "KernelMemoryCorruption",
			"warning", true},
		{"used-freed", "kernel-memory-corruption", "): Poison overwritten", "KernelMemoryCorruption", "warning", true},
		{"soft-lockup 7", "soft-lockup", "soft lockup - CPU#1 stuck for", "SoftLockup", "warning", false},
		{"soft-lockup 7", "soft-lockup", "soft lockup - CPU#1 stuck for", "SoftLockup", "warning", false},
		{"soft-lockup 7", "soft-lockup", "soft lockup - CPU#1 stuck for", "SoftLockup", "fatal", false},
		{"rcu-task 9", "rcu-stall", "rcu_preempt detected stalls on CPUs/tasks", "RCUStall", "warning", false},
		{"irqs-off 9", "rcu-stall", "rcu_preempt detected stalls on CPUs/tasks", "RCUStall", "", false},
		{"list", "kernel-memory-corruption", "list_add corruption", "KernelMemoryCorruption", "warning", true},
		{"usercopy", "kernel-memory-corruption", "Kernel memory exposure attempt detected", "KernelMemoryCorruption",
			"warning", true},
		{"null", "kernel-oops", "NULL pointer dereference", "KernelOops", "fatal", true},
		{"page", "kernel-oops", "unable to handle page fault for address", "KernelOops", "fatal", true},
		{"protection", "kernel-oops", "general protection fault", "KernelOops", "fatal", true},
		{"bug", "kernel-oops", "kernel BUG at", "KernelOops", "fatal", true},
		{"divide", "kernel-oops", "divide error", "KernelOops", "fatal", true},
	}
}

// TestCrash: the kernel warns, stalls, locks up and dies in many ways. Each is reported with its own reason, and no
// longer after its end, unless only a reboot repairs it.
func TestCrash(t *testing.T) {
	insert(t, "guest_sensors")
	run(t, "insmod", filepath.Join(*modules, "guest_faults.ko")) // permanently: dead tasks still use it
	for file, value := range map[string]string{
		"/proc/sys/kernel/watchdog_thresh": "2", "/proc/sys/kernel/hung_task_timeout_secs": "10",
		"/proc/sys/kernel/hung_task_check_interval_secs": "5",
		"/proc/sys/kernel/poweroff_cmd":                  "/bin/true", // otherwise the thermal zone ends the test
	} {
		put(t, file, value)
	}
	rules := []string{"unknown-nmi: {expiry: 15s}"}
	for _, c := range crashes() {
		if rule := c.rule + ": {expiry: 15s}"; !c.lasts && c.reason != "" && !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	a, stop := start(t, t.TempDir(), "checks: {hung-tasks: {after: 20s, every: 5s}, kernel-taint: {every: 5s}, "+
		"kernel-log: {every: 5s, rules: {"+strings.Join(rules, ", ")+"}}}\n")
	defer stop()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the kernel's log:\n%s", run(t, "sh", "-c", "dmesg | tail -n 100"))
		}
	})
	before := map[string]int{}
	for _, c := range crashes() {
		if !t.Run(c.make, func(t *testing.T) { c.happen(t, a, before) }) {
			return
		}
	}
	a.awaitReason("hung-tasks", "TaskHung", "guest-hung", true)
	setParameter(t, "guest_sensors", "zone_temp", "100500")
	a.awaitSaid("CriticalTemperature", "thermal_zone0", true)
	setParameter(t, "guest_sensors", "zone_temp", "40000")
	monitor(t, "nmi")
	a.awaitSaid("UnknownNMI", "", true)
	a.awaitSaid("UnknownNMI", "", false)
	a.awaitReason("kernel-taint", "KernelDied", "", true)
	for _, c := range crashes() {
		if !c.lasts && c.reason != "" {
			a.awaitSaid(c.reason, "", false)
		}
	}
	a.awaitReason("hung-tasks", "TaskHung", "guest-hung", false)
	for _, c := range crashes() {
		if c.lasts {
			a.awaitSaid(c.reason, "", true) // only a reboot repairs it
		}
	}
	for _, f := range a.status().Findings {
		if f.Subject.Kind == "node" && f.Subject.Name == "" {
			t.Errorf("a node without a name: %+v", f)
		}
		t.Logf("to the end: %s %s %s %s %s: %s", f.Check, f.Severity, f.Reason, f.Subject.Kind, f.Subject.Name,
			f.Message)
	}
}

// happen causes a fault and waits until it is reported.
func (c crash) happen(t *testing.T, a *agent, before map[string]int) {
	if c.rule == "rcu-stall" { // not earlier: its report delays that of a soft lockup
		put(t, "/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout", "3")
	}
	setParameter(t, "guest_faults", "make", c.make)
	var m matched
	eventually(t, c.rule+" in the kernel's log", func() (found bool) {
		m, found = c.last(replayed(t), before)
		return found
	})
	run(t, "dmesg", "-n", "1") // after an oops the kernel prints all its messages between the lines of this test
	t.Logf("%s %s: %s", m.Severity, m.Rule, m.Line)
	if c.reason != "" {
		own := *a
		own.t = t
		own.awaitSaid(c.reason, "", true)
	}
}

// last returns the last line of a fault, if there are more than before and its severity is right.
func (c crash) last(lines []matched, before map[string]int) (last matched, found bool) {
	count := 0
	for _, m := range lines {
		if m.Rule == c.rule && strings.Contains(m.Line, c.says) {
			count++
			last = m
		}
	}
	if count <= before[c.says] || c.grade != "" && last.Severity != c.grade {
		return last, false
	}
	before[c.says] = count
	return last, true
}

// matched is a line of the kernel's log that a rule matched.
type matched struct{ Line, Rule, Reason, Severity string }

// replayed returns the matches of "nodeagent replay" in the whole log of the kernel.
func replayed(t *testing.T) (lines []matched) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "dmesg | "+*binary+" replay -o json -")
	out, _ := cmd.Output() // the exit code depends on the output
	for line := range strings.Lines(string(out)) {
		var m matched
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}
