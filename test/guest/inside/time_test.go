package inside

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestClockJumps: the clock jumps by years, both ways. Only findings about the clock are raised, cleared or raised
// again.
func TestClockJumps(t *testing.T) {
	a, stop := start(t, t.TempDir(), "")
	defer stop()
	ram(t)
	run(t, "modprobe", "ext4")
	run(t, "mkfs.ext4", "-q", "-F", "/dev/ram8")
	dir := t.TempDir()
	run(t, "mount", "/dev/ram8", dir)
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	put(t, "/sys/fs/ext4/ram8/trigger_fs_error", "a test")
	a.awaitReason("filesystem-readonly", "", "", true)
	a.awaitReason("default-route", "", "", true) // the guest has none; that takes a minute to be believed
	before := settled(a)
	began, up := time.Now(), uptime(t)
	defer func() { setClock(t, began.Add(uptime(t)-up)) }()
	for _, jump := range []time.Duration{5 * 365 * 24 * time.Hour, -10 * 365 * 24 * time.Hour} {
		setClock(t, began.Add(uptime(t)-up+jump))
		unchanged(a, before, fmt.Sprintf("the clock was moved by %s", jump))
	}
}

// settled waits until findings are no longer raised or cleared, and returns the believed ones.
func settled(a *agent) (all []string) {
	a.t.Helper()
	eventually(a.t, "findings that stay", func() bool {
		all = reported(a.status())
		time.Sleep(10 * time.Second) // several runs of the frequent checks
		return slices.Equal(all, reported(a.status()))
	})
	return all
}

// unchanged checks for half a minute that no finding is raised or cleared after an event.
func unchanged(a *agent, before []string, happened string) {
	a.t.Helper()
	// by a clock that does not jump
	for began := time.Now(); time.Since(began) < 35*time.Second; time.Sleep(time.Second) {
		if after := reported(a.status()); !slices.Equal(before, after) {
			a.t.Fatalf("%s: believed before %v, now %v", happened, before, after)
		}
	}
}

// reported returns the believed findings, except for those about the clock.
func reported(s status) (all []string) {
	for _, f := range s.Findings {
		// the clock source of an emulated machine may be given up at any time
		if f.Check != "time-sync" && f.Check != "clock-source" {
			all = append(all, f.Check+" "+f.Reason+" "+f.Subject.Name+" "+f.ID)
		}
	}
	slices.Sort(all)
	return all
}

func setClock(t *testing.T, to time.Time) {
	t.Helper()
	tv := syscall.NsecToTimeval(to.UnixNano())
	if err := syscall.Settimeofday(&tv); err != nil {
		t.Fatal(err)
	}
}

// uptime is a time that no clock change affects.
func uptime(t *testing.T) time.Duration {
	t.Helper()
	text, _, _ := strings.Cut(read("/proc/uptime"), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// TestKernelLogFlood: 20,000 lines in a few seconds, of which the kernel keeps only some thousand; one of them is about
// a filesystem with errors. It is found, lost lines are counted, and the agent uses neither much memory nor much CPU
// time.
func TestKernelLogFlood(t *testing.T) {
	a, stop := start(t, t.TempDir(), "")
	defer stop()
	ram(t)
	run(t, "modprobe", "ext4")
	run(t, "mkfs.ext4", "-q", "-F", "/dev/ram9")
	dir := t.TempDir()
	run(t, "mount", "-o", "errors=remount-ro", "/dev/ram9", dir)
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	put(t, "/proc/sys/kernel/printk_devkmsg", "on\n") // otherwise the kernel drops most lines of programs
	log, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	pid := a.status().PID
	cpu, memory := cost(t, pid)
	began := uptime(t)
	for i := range 20_000 {
		if i == 10_000 {
			put(t, "/sys/fs/ext4/ram9/trigger_fs_error", "in the flood")
		}
		if _, err := fmt.Fprintf(log, "<6>flood: line %d, which says nothing that anybody would want to know\n",
			i); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("20000 lines in %s", uptime(t)-began)
	a.awaitFound("filesystem-readonly", func(f believed) bool {
		return strings.Contains(f.Message, "ram9") || strings.Contains(f.Message, dir)
	}, true)
	s := a.status()
	t.Logf("the kernel's line reported: %v; lost records reported: %v", has(s, "kernel-log", "FilesystemIsReadOnly"),
		has(s, "kernel-log", "KernelRecordsLost"))
	if !has(s, "kernel-log", "KernelRecordsLost") && !slices.ContainsFunc(s.Findings, func(f believed) bool {
		return f.Check == "kernel-log"
	}) {
		t.Errorf("neither the line nor the loss of lines is reported: %+v", s.Findings)
	}
	cpuAfter, memoryAfter := cost(t, pid)
	t.Logf("processor time %s, memory %d KiB before and %d KiB after", cpuAfter-cpu, memory, memoryAfter)
	if cpuAfter-cpu > 20*time.Second { // an emulated processor is 10 to 20 times slower than a real one
		t.Errorf("it cost %s", cpuAfter-cpu)
	}
	if memoryAfter > memory+64<<10 {
		t.Errorf("it grew from %d to %d KiB", memory, memoryAfter)
	}
}

// cost returns the CPU time that a process used, and its memory in KiB.
func cost(t *testing.T, pid int) (cpu time.Duration, kib int) {
	t.Helper()
	_, stat, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	fields := strings.Fields(stat)
	if len(fields) < 13 {
		t.Fatalf("process %d: %q", pid, stat)
	}
	for _, field := range fields[11:13] { // utime, stime in ticks of 10 ms
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	_, after, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/status", pid)), "VmRSS:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return cpu, kib
}
