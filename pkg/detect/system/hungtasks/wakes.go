package hungtasks

import (
	"io/fs"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
)

// A task that waits for an I/O which it submitted itself (O_DIRECT, a flush, a passthrough command) is woken by the
// kernel twice in each period of its detection of hung tasks, and waits again. The only purpose is that the detection
// ignores it ("prevent hang_check timer from firing at us during very long I/O"):
//
//	/proc/sys/kernel/hung_task_timeout_secs   120     0: the detection is off, no task is woken
//	/proc/PID/task/TID/wchan                  submit_bio_wait, blk_io_schedule, blk_execute_rq, blk_wait_io
//
// So the kernel never reports such a task, and its context switches grow by one a minute. It is hung nevertheless.
//
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/block/bio.c (submit_bio_wait),
// https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/block/blk-core.c (blk_io_schedule)

// kernelWakes is how often the kernel wakes such tasks. It is read at most once in a run, if needed.
type kernelWakes struct {
	known bool
	every time.Duration // 0: never
}

func (k *kernelWakes) read(files host.Files) error {
	if k.known {
		return nil
	}
	seconds, err := checkkit.ReadCount(files, "/proc/sys/kernel/hung_task_timeout_secs")
	if hosterr.Ignore(err, fs.ErrNotExist) != nil { // 0 if the kernel was built without the detection
		return err
	}
	k.known, k.every = true, time.Duration(min(seconds, 1<<31))*time.Second/2
	return nil
}

// continues reports whether a task in state D has been so since old was first read: it did not run at all, or not more
// often than the kernel woke it. Only the latter costs reading a file.
func (k *kernelWakes) continues(files host.Files, old, now *blockedTask) (bool, error) {
	const mostWakes = 1000 // in hours; a task with more of them works
	switch ran := now.switches - old.first; {
	case now.switches == old.switches:
		return true, nil
	case now.switches < old.switches || ran > mostWakes:
		return false, nil
	default:
		if err := k.read(files); err != nil || k.every <= 0 {
			return false, err
		}
		wakes := 1 + uint64((now.since-old.since)/k.every)
		return ran <= wakes && slices.Contains([]string{"submit_bio_wait", "blk_io_schedule", "blk_execute_rq",
			"blk_wait_io"}, tasks.WaitChannel(files, now.PID, now.ID.Tid)), nil
	}
}
