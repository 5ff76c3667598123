package inside

import (
	"os"
	"testing"
	"time"
)

// TestMachinePanics: the kernel panics and hangs, and the hardware watchdog resets the machine. It is the last test of its
// guest: what follows is TestAgain.
func TestMachinePanics(t *testing.T) {
	needGuest(t)
	put(t, "/proc/sys/kernel/panic", "0") // it hangs, rather than reboots
	put(t, "/dev/watchdog0", "x")         // from now on it wants to be fed
	_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	time.Sleep(time.Minute)
	t.Fatal("it goes on")
}

// TestAgain: after the boot that follows, it is told why there was one.
func TestAgain(t *testing.T) {
	a, stop := start(t, "/run/tmp", "checks: {last-panic: {every: 5s}}\n")
	defer stop()
	a.awaitReason("last-panic", "KernelPanicBefore", "", true)
	a.awaitReason("hardware-watchdog", "WatchdogReset", "watchdog0", true)
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
