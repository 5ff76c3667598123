// Package thread is for tests that change the namespaces of their thread.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Spoil locks the calling goroutine to a thread whose namespaces it may change: the thread ends with the goroutine, and
// is not the first one of the process. The first one never ends, and /proc/PID and /proc/self show its namespaces for
// the whole process: if it had its own, the other tests would see the wrong mounts and links.
func Spoil() {
	runtime.LockOSThread() // never unlocked
	for unix.Gettid() == unix.Getpid() {
		runtime.UnlockOSThread()
		release := hold()
		runtime.LockOSThread()
		release()
	}
}

// hold makes a goroutine occupy the first thread, if it runs on it, until release is called.
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
