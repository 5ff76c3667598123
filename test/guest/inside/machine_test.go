package inside

import (
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// disks are the RAM disks of the bare guest, each with a filesystem to be broken once.
const (
	brokenDisk = iota // from the start
	afterPause
	afterSuspend
	afterRestore
	lostDisk // broken in a time later undone
	allDisks
)

// whole is the agent that watches the bare guest.
var whole struct {
	once  sync.Once
	agent *agent
}

// machine returns an agent that watches the bare guest, and already believes some faults.
func machine(t *testing.T) *agent {
	t.Helper()
	needGuest(t)
	whole.once.Do(func() {
		for i := range allDisks {
			disk := fmt.Sprintf("/dev/ram%d", i)
			run(t, "mke2fs", "-F", disk, "8192")
			run(t, "mkdir", "/run/"+fmt.Sprint(i))
			run(t, "mount", "-t", "ext4", disk, "/run/"+fmt.Sprint(i))
		}
		// which is restored; the emulated TSC is not
		put(t, "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
		whole.agent, _ = start(t, "/run/tmp", "checks: {memory-corrupted: {every: 5s}, kernel-taint: {every: 5s}}\n")
		whole.agent.t = t
		breakDisk(whole.agent, brokenDisk)
		whole.agent.awaitReason("default-route", "", "", true)
	})
	if whole.agent == nil {
		t.Fatal("there is no agent")
	}
	a := *whole.agent
	a.t = t
	return &a
}

// breakDisk makes a filesystem meet an error, which is found.
func breakDisk(a *agent, disk int) {
	a.t.Helper()
	put(a.t, fmt.Sprintf("/sys/fs/ext4/ram%d/trigger_fs_error", disk), "test")
	a.awaitFound("filesystem-readonly", func(f believed) bool {
		return f.Subject.Name == fmt.Sprintf("/run/%d", disk)
	}, true)
}

// goesOn tests that a new fault, and its end, are found.
func goesOn(a *agent, disk int) {
	a.t.Helper()
	breakDisk(a, disk)
	dir := fmt.Sprintf("/run/%d", disk)
	if err := syscall.Unmount(dir, 0); err != nil {
		a.t.Fatal(err)
	}
	a.awaitFound("filesystem-readonly", func(f believed) bool { return f.Subject.Name == dir }, false)
}

// TestMachinePaused: the host pauses a virtual machine for a while, for a backup or a move to another host.
func TestMachinePaused(t *testing.T) {
	a := machine(t)
	before, began := settled(a), realTime(t)
	monitor(t, "stop 30")
	if stood := realTime(t).Sub(began); stood < 30*time.Second {
		t.Fatalf("it stood for %s only", stood)
	}
	setClock(t, realTime(t)) // like time synchronisation
	unchanged(a, before, "the machine was stopped")
	goesOn(a, afterPause)
}

// TestMachineSuspended: suspended to memory, and woken by its clock.
func TestMachineSuspended(t *testing.T) {
	a := machine(t)
	before, began, up := settled(a), time.Now(), uptime(t)
	put(t, "/sys/class/rtc/rtc0/wakealarm", "+30")
	put(t, "/sys/power/state", "mem")
	// the clock for both stands still during sleep
	if slept := uptime(t) - up - time.Since(began); slept < 20*time.Second {
		t.Fatalf("it slept for %s only", slept)
	}
	unchanged(a, before, "the machine was suspended")
	goesOn(a, afterSuspend)
}

// TestMachineRestored: the whole machine, including its memory, is restored to a snapshot. Later findings are gone,
// because they have not happened.
func TestMachineRestored(t *testing.T) {
	a := machine(t)
	before, began := settled(a), time.Now()
	if answer := ask(t, "savevm before"); answer == "done" {
		breakDisk(a, lostDisk)
		time.Sleep(20 * time.Second)
		monitor(t, "loadvm before")
		t.Fatal("the machine was not restored")
	} else if answer != "restored" {
		t.Fatal(answer)
	}
	if time.Since(began) > realTime(t).Sub(began)-15*time.Second {
		t.Fatalf("no time was lost: it is %s, really %s", time.Now(), realTime(t))
	}
	setClock(t, realTime(t))
	unchanged(a, before, "the machine was restored")
	goesOn(a, afterRestore)
	goesOn(a, lostDisk)
}

// realTime is the time of the battery-backed clock, which continues while the machine stands still.
func realTime(t *testing.T) time.Time {
	t.Helper()
	seconds, err := strconv.ParseInt(read("/sys/class/rtc/rtc0/since_epoch"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(seconds, 0)
}
