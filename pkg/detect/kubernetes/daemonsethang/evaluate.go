package daemonsethang

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A container hangs if it did so in this many looks over this time, and no look between them disproves it.
const (
	hungRuns = 3
	hungSpan = 5 * time.Minute
)

// streak is a series of looks with the same result.
type streak struct {
	since finding.Timestamp
	runs  int
}

func (s *streak) add(now finding.Timestamp) {
	if s.runs++; s.runs == 1 {
		s.since = now
	}
}

func (s streak) hung(now finding.Timestamp) bool {
	return s.runs >= hungRuns && now.Since(s.since) >= hungSpan
}

// watch is the state kept for one DaemonSet.
type watch struct {
	main    main
	silent  streak
	blocked streak
	threads map[int]uint64 // in state D in each look of the streak, with their time on a processor
}

// evaluate adds a look and returns the fault, or why there is none to report yet. A failed look is no evidence, and
// does not end a streak.
func (w *watch) evaluate(l observation, failed error, now finding.Timestamp) (*finding.Finding, error) {
	if failed != nil {
		return nil, failed
	}
	if l.Main != w.main {
		*w = watch{main: l.Main}
	}
	if l.ID == "" {
		return nil, nil
	}
	w.addBlocked(l.Blocked, now)
	if l.Silent == "" {
		w.silent = streak{}
	} else {
		w.silent.add(now)
	}
	what := fmt.Sprintf("container %s of pod %s", l.Container, l.Pod)
	facts := map[string]string{"pod": l.Pod, "container": l.Container, "containerID": l.ID,
		"pid": strconv.Itoa(l.Main.PID)}
	switch {
	case w.blocked.hung(now):
		tid := slices.Min(slices.Collect(maps.Keys(w.threads)))
		return &finding.Finding{Severity: finding.Warning, Reason: "DaemonSetPodHungInKernel", Facts: facts,
			Message: fmt.Sprintf("%s hangs in the kernel: thread %d of its process %d has been in state D for %s", what,
				tid, l.Main.PID, minutes(now.Since(w.blocked.since)))}, nil
	case w.silent.hung(now):
		return &finding.Finding{Severity: finding.Warning, Reason: "DaemonSetPodNotAnswering", Facts: facts,
			Message: fmt.Sprintf("%s does not answer on its health socket, for %s by now: %s", what,
				minutes(now.Since(w.silent.since)), l.Silent)}, nil
	case w.silent.runs > 0:
		return nil, fmt.Errorf("%s does not answer; it hangs if that lasts %s: %s", what, hungSpan, l.Silent)
	case w.blocked.runs > 1:
		return nil, fmt.Errorf("a thread of process %d of %s is in state D; it hangs if that lasts %s", l.Main.PID, what,
			hungSpan)
	}
	return nil, nil
}

// addBlocked keeps the threads that have been in state D all the time, or starts again with those of now.
func (w *watch) addBlocked(now map[int]uint64, at finding.Timestamp) {
	maps.DeleteFunc(w.threads, func(tid int, ticks uint64) bool {
		seen, still := now[tid]
		return !still || seen != ticks
	})
	if len(w.threads) == 0 {
		w.blocked, w.threads = streak{}, maps.Clone(now)
	}
	if len(w.threads) > 0 {
		w.blocked.add(at)
	}
}

// minutes rounds a time so that a message does not change with each run.
func minutes(d time.Duration) time.Duration { return d.Truncate(5 * time.Minute) }
