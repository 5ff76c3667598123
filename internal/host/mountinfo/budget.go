package mountinfo

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// For the line of a mount that lies on k others at one directory the kernel walks through all of them, so that a table
// with a stack of n costs it n*n/2 steps: 32,768 mounts take 13 to 19 s of a processor, those of a thousand pods 50 ms.
const (
	free      = 200 * time.Millisecond // of a processor, for one reading of the host's table
	freeOther = 100 * time.Millisecond // for that of another process
	burst     = 300 * time.Millisecond // beyond, for all together
	share     = 50                     // and then a fiftieth of a processor
	slowFor   = time.Minute            // how long a table is taken to be one that costs too much
)

// budget is the processor time that readings may take beyond what is free.
type budget struct {
	mu    sync.Mutex
	spent time.Duration
	at    time.Time // when spent was that
	until time.Time // the host's table costs too much until then
}

// spend adds to the time that was taken, and reports whether there is some left.
func (b *budget) spend(more time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.spent = max(0, b.spent-now.Sub(b.at)/share) + more
	b.at = now
	return b.spent < burst
}

// slow reports whether the host's table was found to cost too much.
func (b *budget) slow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(b.until)
}

// found remembers what a reading of the host's table costs.
func (b *budget) found(m *metered) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = time.Time{}
	if m.cost > free {
		b.until = time.Now().Add(slowFor)
	}
}

// metered is a file whose reading is measured.
type metered struct {
	file   *File
	budget *budget
	clock  func() time.Duration
	free   time.Duration
	cost   time.Duration
}

func (r *Reader) metered(file *File, free time.Duration) *metered {
	m := &metered{file: file, budget: &r.budget, clock: r.Cost, free: free}
	if m.clock == nil {
		m.clock = threadTime
	}
	return m
}

func (m *metered) Read(data []byte) (int, error) {
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	before := m.clock()
	n, err := m.file.Read(data)
	took := m.clock() - before
	if m.cost += took; m.cost > m.free {
		m.budget.spend(min(took, m.cost-m.free))
	}
	return n, err
}

// more reports whether the reading may go on.
func (m *metered) more() bool { return m.cost < m.free || m.budget.spend(0) }

// whole is a table that is of use only as a whole: reading it fails where it costs too much.
type whole struct{ *metered }

func (w whole) Read(data []byte) (int, error) {
	if !w.more() {
		return 0, &CutError{}
	}
	return w.metered.Read(data)
}

// threadTime is how much processor time the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
