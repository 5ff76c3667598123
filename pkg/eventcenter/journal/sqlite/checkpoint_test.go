package sqlite

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// anew returns how often the write-ahead log of the newest file has begun anew: its header counts that.
func (s *Store) anew(t *testing.T) uint32 {
	t.Helper()
	parts := s.partitions()
	data, err := os.ReadFile(parts[len(parts)-1].path + "-wal")
	if err != nil || len(data) < 32 {
		t.Fatalf("%d bytes of a log: %v", len(data), err)
	}
	return binary.BigEndian.Uint32(data[12:])
}

// The log is written back beside the writer once it has grown; the writer adds the rest, and it begins anew. What was
// appended is there, also for who opens it again.
func TestWriteBack(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	sequence := uint64(0)
	add := func(n int) {
		events := make([]journal.Event, n)
		for i := range events {
			events[i] = of(fmt.Sprint("node-", sequence%7), sequence/7+1)
			events[i].JSON = append(events[i].JSON, strings.Repeat(" ", 1000)...) // so that it is over SQLite's 1000 pages
			sequence++
		}
		s.mustAppend(t, events...)
	}
	add(writeBackRecords - 2)
	add(1) // the writer has left it alone
	if s.anew(t) != 0 || s.back.done.Load() {
		t.Error("it has begun anew before it had grown")
	}
	add(1)
	for !s.back.done.Load() { // it is asked for, and nothing else is
		time.Sleep(time.Millisecond)
	}
	s.back.done.Store(false) // nothing came meanwhile: there is no rest
	add(1)
	if n := s.anew(t); n != 1 {
		t.Errorf("written back, it has begun anew %d times", n)
	}
	s.back.done.Store(true) // what the last has added is the rest
	add(1)
	if n := s.anew(t); n != 2 {
		t.Errorf("with what the writer has added, it has begun anew %d times", n)
	}
	if gaps, err := s.Check(t.Context()); err != nil || len(gaps) > 0 {
		t.Errorf("gaps %v: %v", gaps, err)
	}
	s.mustClose(t)
	s = openTest(t, dir, Options{})
	if newest := s.Bounds().Newest; newest != sequence {
		t.Errorf("%d of %d are there", newest, sequence)
	}
}
