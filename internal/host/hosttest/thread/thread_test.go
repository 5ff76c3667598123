package thread

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestSpoil: whatever thread a goroutine is on, it never stays on the first one.
func TestSpoil(t *testing.T) {
	first := 0
	for range 2000 {
		onFirst, spoilt := false, make(chan int)
		go func() {
			onFirst = unix.Gettid() == unix.Getpid()
			Spoil()
			spoilt <- unix.Gettid()
		}()
		if <-spoilt == unix.Getpid() {
			t.Fatal("the first thread of the process is spoilt")
		}
		if onFirst {
			first++
		}
	}
	t.Logf("%d of 2000 began on the first thread", first)
}
