// Package thread is for tests that change the namespaces of their thread.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Spoil ties the calling goroutine to a thread that may be spoilt: it ends with the goroutine, and is not the first
// one of the process. That one never ends, and is what /proc/PID and /proc/self show of the whole process: with
// namespaces of its own it would hide from every other test what is mounted and which links there are.
func Spoil() {
	runtime.LockOSThread() // never unlocked
	for unix.Gettid() == unix.Getpid() {
		runtime.UnlockOSThread()
		release := hold()
		runtime.LockOSThread()
		release()
	}
}

// hold lets a goroutine keep the first thread, if it comes upon it, until it is released.
func hold() (release func()) {
	tried, done := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		close(tried)
		if unix.Gettid() == unix.Getpid() {
			<-done
		}
	}()
	<-tried
	return func() { close(done) }
}
