package npd

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	hostkmsg "github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// kernelFeed feeds a log monitor with records of /dev/kmsg.
type kernelFeed struct {
	monitor  *logMonitor
	from     time.Duration // since boot: earlier records do not count
	reported uint64        // records before this number were reported by an earlier run; 0 for none
	next     atomic.Uint64 // number of the next record
}

func (m *Monitors) addKernel(l *logMonitor, was saved) {
	e := &kernelFeed{monitor: l, reported: was.Next, from: l.times.start(m.deps.Host.Clock().SinceBoot)}
	if e.reported > 0 {
		e.from = l.times.delay // records from the time without an agent were never reported, however long that was
	}
	e.next.Store(was.Next)
	m.kernel = append(m.kernel, e)
	m.remember(l, func(s *saved) { s.Next = e.next.Load() })
}

// Kernel makes a watcher of the kernel's log feed the monitors, too: there is one reader for all.
func (m *Monitors) Kernel(watch kernellog.KernelWatch) kernellog.KernelWatch {
	if len(m.kernel) == 0 {
		return watch
	}
	return func(ctx context.Context, log *slog.Logger, each func(hostkmsg.KernelRecord), caughtUp func()) error {
		err := watch(ctx, log, func(r hostkmsg.KernelRecord) {
			m.observeKernel(r)
			each(r)
		}, func() {
			m.setKernelReadable(nil)
			caughtUp()
		})
		if err != nil && ctx.Err() == nil {
			m.setKernelReadable(err)
		}
		return err
	}
}

func (m *Monitors) observeKernel(r hostkmsg.KernelRecord) {
	for _, e := range m.kernel {
		e.observeRecord(r)
	}
}

func (m *Monitors) setKernelReadable(err error) {
	for _, e := range m.kernel {
		e.monitor.setReadable(err)
	}
}

// observeRecord takes a record. The kernel's dictionary (SUBSYSTEM, DEVICE) is not part of the text. In
// node-problem-detector it is, so no pattern there matches a record with a dictionary.
func (e *kernelFeed) observeRecord(r hostkmsg.KernelRecord) {
	next := e.next.Load()
	again := r.Sequence < next
	if again && r.Sequence >= e.reported {
		return // the log is being read again from its start
	}
	if !again {
		e.next.Store(r.Sequence + 1)
	}
	text := strings.TrimSpace(r.Text)
	if text == "" || r.Up < e.from || e.monitor.settings.KernelOnly && !r.FromKernel() || e.monitor.skips(text) {
		return
	}
	e.monitor.observe(line{text: text, at: r.Up, context: again})
}
