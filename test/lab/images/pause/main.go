// Command pause is the first process of every pod of the lab: it holds the pod's namespaces, reaps the orphaned
// processes of the pod, and exits on SIGTERM or SIGINT. With the argument "ignore-term" it does not exit on SIGTERM,
// like a program that has hung; it then needs SIGKILL.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	stubborn := len(os.Args) > 1 && os.Args[1] == "ignore-term"
	for {
		switch <-signals {
		case syscall.SIGCHLD:
			reap()
		case syscall.SIGTERM:
			if !stubborn {
				return
			}
		case syscall.SIGINT:
			return
		}
	}
}

// reap collects every exited child: one signal may stand for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}
