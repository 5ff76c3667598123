package detect

import (
	"github.com/nodeagent/nodeagent/internal/host"
)

// threadStates says how the threads of a process are, by /proc/PID/task/TID/stat.
type threadStates struct {
	Main    byte // state of the main thread; 0 when it could not be read
	Blocked int  // threads in state D: in the kernel, deaf to every signal
}

// maxThreads bounds how many threads of a hung daemon are looked at.
const maxThreads = 2000

// lookAtThreads reads the states of a daemon that does not answer. A Go program hangs in the kernel with whichever of
// its threads made the call, so the main thread alone proves nothing. What cannot be read is left out: the process may
// end meanwhile.
func lookAtThreads(h *host.Host, pid int) threadStates {
	var states threadStates
	if main, err := h.ProcStat(pid); err == nil {
		states.Main = main.State
	}
	tids, err := h.TIDs(pid)
	if err != nil {
		return states
	}
	for _, tid := range tids[:min(len(tids), maxThreads)] {
		if thread, err := h.TaskStat(pid, tid); err == nil && thread.State == 'D' {
			states.Blocked++
		}
	}
	return states
}
