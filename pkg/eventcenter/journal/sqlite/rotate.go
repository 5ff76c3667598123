package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// roll begins a new partition: on a new day, or if the newest is missing or damaged. first is the next offset. The
// partition begins with the watermarks of all recently active streams.
func (s *Store) roll(ctx context.Context, now time.Time, first uint64) error {
	day := now.UTC().Format(time.DateOnly)
	w := &s.writer
	if w.part != nil && (w.day == day && !w.part.damaged.Load() || w.part.last < w.part.first) {
		return nil
	}
	s.mu.Lock()
	newest := event.Earlier(now, s.lastReceived()) // the clock may have jumped
	s.mu.Unlock()
	maps.DeleteFunc(w.streams, func(_ streamKey, mark watermark) bool { return newest.Sub(mark.seen) > s.Keep })
	p, err := s.create(ctx, first, day)
	if err != nil {
		w.part = nil // damage is that of the new one
		return err
	}
	if err = w.close(); err == nil {
		err = s.writeTo(ctx, p)
	}
	if err != nil { // no reader knows this file: it must get no events
		w.part = nil
		return errors.Join(err, w.close(), p.drop())
	}
	w.day, w.bare = day, false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = append(s.parts, p)
	return nil
}

func (s *Store) partitions() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts)
}

// room returns ErrFull while the disk is full. When space is free again, it first recreates the ballast.
func (s *Store) room() error {
	s.mu.Lock()
	full := !s.fullFrom.IsZero()
	s.mu.Unlock()
	if !full {
		return nil
	}
	free, err := s.free()
	if err != nil {
		return err
	}
	if free < 2*s.BallastBytes || s.makeBallast() != nil {
		return journal.ErrFull
	}
	s.Log.Info("the journal's disk has room again")
	s.mu.Lock()
	s.fullFrom = time.Time{}
	s.mu.Unlock()
	return nil
}

// full frees the ballast: trimming and checkpoints need space to work.
func (s *Store) full(cause error) error {
	s.mu.Lock()
	s.fullFrom = s.Now()
	s.mu.Unlock()
	s.Log.Error("the journal's disk is full: refusing events until it has room", "dir", s.Dir, "err", cause)
	if err := remove(s.ballast()); err != nil {
		s.Log.Error("free the ballast failed", "err", err)
	}
	return fmt.Errorf("%w: %w", journal.ErrFull, cause)
}
