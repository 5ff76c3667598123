package inside

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestMachinePanics: a processor meets an uncorrectable error, for which the kernel panics; it hangs, and the hardware
// watchdog resets the machine. It is the last test of its guest: TestAgain follows.
func TestMachinePanics(t *testing.T) {
	needGuest(t)
	put(t, "/proc/sys/kernel/panic", "0") // it hangs instead of rebooting
	run(t, "rmmod", "i6300esb")           // its driver does not set it up again after a suspend
	run(t, "insmod", "/lib/i6300esb.ko", "heartbeat=4")
	put(t, "/dev/watchdog0", "x") // from now on it must be fed
	monitor(t, "mce -b 0 8 0xbe00000000000134 0x4 0x1000 0x8c")
	time.Sleep(time.Minute)
	t.Fatal("it goes on")
}

// TestAgain: after the following boot, its cause is reported.
func TestAgain(t *testing.T) {
	a, stop := start(t, "/run/tmp", "checks: {last-panic: {every: 5s}}\n")
	defer stop()
	a.awaitFound("last-panic", func(f believed) bool {
		return strings.Contains(f.Message, "Fatal machine check")
	}, true)
	a.awaitReason("hardware-watchdog", "WatchdogReset", "watchdog0", true)
	a.awaitReason("kernel-log", "MachineCheckUncorrected", "0", true) // the processor remembers it
	for _, f := range a.status().Findings {
		if f.Severity == "fatal" {
			t.Errorf("the node is up again: %+v", f)
		}
	}
	dumps, err := os.ReadDir("/sys/fs/pstore")
	if err != nil {
		t.Fatal(err)
	}
	for _, dump := range dumps {
		if err := os.Remove("/sys/fs/pstore/" + dump.Name()); err != nil {
			t.Fatal(err)
		}
	}
	a.awaitReason("last-panic", "", "", false)
}
