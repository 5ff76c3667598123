package sqlite

import (
	"context"
	"sync"
	"sync/atomic"
)

// The write-ahead log is written back into its file beside the writer. A writer that does so itself has all that was sent
// to it wait meanwhile: for a flush of the log, thousands of scattered pages, a flush of the file, and one of the new log's
// head. SQLite's 1000 pages are some 300 events that came alone.
const (
	writeBackRecords = 4000   // appended since the last time; with indexes some 14,000 pages where each came alone
	maxLogPages      = 32_000 // of 4 KiB, of which the writer writes back all the same
)

// writeBack is what the writing goroutine and the one beside it have in common.
type writeBack struct {
	appended int           // records since it was asked for; of the writing goroutine
	asked    chan struct{} // size 1
	done     atomic.Bool   // nearly all is in the file: where the writer adds the rest, the log begins anew
	running  sync.WaitGroup
}

// grow notes what was appended.
func (w *writeBack) grow(records int) {
	if w.appended += records; w.appended < writeBackRecords {
		return
	}
	w.appended = 0
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

// writeLogs writes the newest file's log back when it has grown, until the journal is closed.
func (s *Store) writeLogs() {
	ctx := context.Background() // it waits for nobody
	for {
		select {
		case <-s.stopping:
			return
		case <-s.back.asked:
		}
		parts := s.partitions()
		newest := parts[len(parts)-1]
		err := newest.writeLog(ctx)
		if err == nil {
			err = newest.writeLog(ctx) // what came meanwhile, which is much less
		}
		if err != nil {
			s.Log.Warn("the write-ahead log is not written back; the writer does it later", "file", newest.path, "err", err)
			continue
		}
		s.back.done.Store(true)
	}
}

// writeLogText writes back what no reader needs in the log, and leaves what somebody else is about to write back.
const writeLogText = "PRAGMA wal_checkpoint(PASSIVE)"

func (p *partition) writeLog(ctx context.Context) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return nil // it is gone
	}
	_, err := p.db.ExecContext(ctx, writeLogText)
	return err
}

// writeRest has the writer write back what little is left. Then all is in the file, and the next transaction begins the
// log anew.
func (s *Store) writeRest(ctx context.Context) {
	if !s.back.done.CompareAndSwap(true, false) {
		return
	}
	if _, err := s.writer.db.ExecContext(ctx, writeLogText); err != nil {
		s.Log.Warn("the rest of the write-ahead log is not written back", "err", err)
	}
}
