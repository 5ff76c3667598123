package eventcenter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Files is the directory on the disk. Any of its calls may hang for as long as the disk does.
type Files struct {
	Scan   func(f func(name string, data []byte, err error)) error // all files, in the order of their names
	Append func(name string, data []byte) error                    // makes the file where there is none
	ReadAt func(name string, offset int64, size int) ([]byte, error)
	Remove func(name string) error
}

const (
	// writeAfter is how long an event waits for its acknowledgement before it is written.
	writeAfter = time.Second
	// diskWait is how long sending waits for the disk. It is well under what a fatal event may take.
	diskWait = 500 * time.Millisecond
	// diskRetry is how long a disk that failed or hung is left alone.
	diskRetry = time.Minute
	// diskGrace is how long an agent that ends waits for a disk that hangs.
	diskGrace = 2 * time.Second
)

// disk does all that is done with the files, in one goroutine, so that nothing else waits for them.
type disk struct {
	r     *Reporter
	files Files
	wake  chan struct{}   // size 1: that there is something to write, not what
	due   atomic.Bool     // it will be written without being woken
	reads chan readOrder  // without a buffer: a read is taken at once, or the disk is busy
	loads chan struct{}   // closed when what earlier starts have left is read
	hung  time.Time       // until then it is not asked to read; of Run's goroutine
	stop  context.Context // ends when what is left is to be written
}

// readOrder asks for records.
type readOrder struct {
	entries []*entry
	files   []string
	answer  chan []read // size 1: it may not be waited for any more
}

type read struct {
	body []byte
	err  error
}

// start begins to write, until the returned function is called: that writes what is left, but does not wait for ever.
func (d *disk) start(ctx context.Context) (stop func() error) {
	if d.files.Append == nil {
		return func() error { return nil }
	}
	var cancel context.CancelFunc
	d.stop, cancel = context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1) // size 1: nobody waits for a disk that comes back late
	go func() { done <- d.run() }()
	return func() error {
		cancel()
		timer := time.NewTimer(diskGrace)
		defer timer.Stop()
		select {
		case err := <-done:
			return err
		case <-timer.C:
			return fmt.Errorf("events are not stored: the disk has hung for %s", diskGrace)
		}
	}
}

// awaitLoaded waits until what earlier starts have left is read, but not for a disk that hangs.
func (d *disk) awaitLoaded(ctx context.Context) {
	if d.files.Append == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, diskWait)
	defer cancel()
	select {
	case <-d.loads:
	case <-ctx.Done():
	}
}

func (d *disk) run() error {
	d.load()
	close(d.loads)
	retry := time.NewTimer(0)
	defer retry.Stop()
	failing := false
	d.due.Store(true)
	for {
		select {
		case <-d.stop.Done():
			return errors.Join(d.flush(0), d.note())
		case order := <-d.reads:
			order.answer <- d.read(order)
			continue
		case <-d.wake:
			if !d.due.Swap(true) {
				retry.Reset(writeAfter)
			}
			continue
		case <-retry.C:
			d.due.Store(false) // what comes from now on may not be seen
		}
		err := d.flush(writeAfter)
		if err != nil && !failing {
			d.r.config.Log.Warn("events are not stored, they will not survive a restart", "err", err)
		}
		if failing = err != nil; failing {
			d.due.Store(true)
			retry.Reset(diskRetry)
		}
	}
}

// load reads what earlier starts have left.
func (d *disk) load() {
	d.r.mu.Lock()
	own := d.r.outbox.own.id
	d.r.mu.Unlock()
	older := newOutbox(own)
	err := d.files.Scan(func(name string, data []byte, err error) {
		if err != nil {
			d.r.config.Log.Warn("stored events are lost", "file", name, "err", err)
		}
		older.loaded(name, data)
	})
	if err != nil {
		d.r.config.Log.Warn("stored events are not readable", "err", err)
	}
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	d.r.outbox.adopt(older)
	d.r.changes()
}

// flush writes what is older than a while, and removes files of which nothing is needed.
func (d *disk) flush(after time.Duration) error {
	before := time.Now().Add(-after)
	d.r.mu.Lock()
	d.r.tellLost(before) // before records say that the center has everything up to there
	d.r.mu.Unlock()
	for {
		d.r.mu.Lock()
		writes := d.r.outbox.unwritten(before)
		d.r.mu.Unlock()
		var problems []error
		for _, w := range writes {
			err := d.files.Append(w.file.name, w.data)
			problems = append(problems, err)
			d.r.mu.Lock()
			d.r.outbox.wrote(w, err)
			d.r.mu.Unlock()
		}
		if err := errors.Join(problems...); err != nil || len(writes) == 0 {
			return errors.Join(err, d.clean())
		}
	}
}

// clean removes what is obsolete, and has what was made meanwhile written later.
func (d *disk) clean() error {
	d.r.mu.Lock()
	obsolete := d.r.outbox.obsolete
	d.r.outbox.obsolete = nil
	left := d.r.outbox.hasUnwritten() || len(d.r.outbox.lost) > 0
	d.r.mu.Unlock()
	if left {
		d.signal()
	}
	if len(obsolete) == 0 {
		return nil
	}
	if err := d.note(); err != nil { // or a restart would miss what was in there
		d.r.mu.Lock()
		defer d.r.mu.Unlock()
		d.r.outbox.obsolete = append(d.r.outbox.obsolete, obsolete...)
		return err
	}
	for i, name := range obsolete {
		if err := d.files.Remove(name); err != nil {
			d.r.mu.Lock()
			defer d.r.mu.Unlock()
			d.r.outbox.obsolete = append(d.r.outbox.obsolete, obsolete[i:]...)
			return err
		}
	}
	return nil
}

// note writes up to where the center has the streams of the files that stay.
func (d *disk) note() error {
	d.r.mu.Lock()
	writes := d.r.outbox.notes(time.Now())
	d.r.mu.Unlock()
	var problems []error
	for _, w := range writes {
		err := d.files.Append(w.file.name, w.data)
		problems = append(problems, err)
		d.r.mu.Lock()
		d.r.outbox.wrote(w, err)
		d.r.mu.Unlock()
	}
	return errors.Join(problems...)
}

func (d *disk) read(order readOrder) []read {
	answers := make([]read, len(order.entries))
	for i, e := range order.entries {
		data, err := d.files.ReadAt(order.files[i], e.offset, headSize+e.size)
		if err == nil {
			data, err = checkRead(e, data)
		}
		answers[i] = read{data, err}
	}
	return answers
}

// signal has what is new written.
func (d *disk) signal() {
	if d.due.Load() {
		return
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// fetch returns the events of a batch that are on the disk alone, by entry. It is false where the disk does not
// answer.
func (d *disk) fetch(ctx context.Context, batch []*entry) (map[*entry]read, bool) {
	if time.Now().Before(d.hung) {
		return nil, false
	}
	order := readOrder{answer: make(chan []read, 1)}
	d.r.mu.Lock()
	for _, e := range batch {
		order.entries, order.files = append(order.entries, e), append(order.files, e.file.name)
	}
	d.r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, diskWait)
	defer cancel()
	select {
	case d.reads <- order:
	case <-ctx.Done():
		d.hung = time.Now().Add(diskRetry)
		return nil, false
	}
	select {
	case answers := <-order.answer:
		bodies := map[*entry]read{}
		for i, e := range batch {
			bodies[e] = answers[i]
		}
		return bodies, true
	case <-ctx.Done():
		d.hung = time.Now().Add(diskRetry)
		return nil, false
	}
}
