package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Check reads the whole copy and records damage as gaps. After each step it calls rest.
func (s *Store) Check(ctx context.Context, rest func(worked time.Duration)) ([]journal.Gap, error) {
	return s.copy.Check(ctx, rest)
}

// Seal removes the write-ahead logs of past days from the copy.
func (s *Store) Seal(ctx context.Context) error { return s.copy.Seal(ctx) }

// Health returns the state of the copy, with the size of the local stream.
func (s *Store) Health() journal.Health {
	h := s.copy.Health()
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Bytes += int64(min(s.state.bytes, 1<<62)) //nolint:gosec // it fits
	return h
}

// patience is how long a replica may fail to reach the stream and still be ready: elections are shorter.
const patience = 12 * time.Second

// maxBehind is how many messages the copy of a ready replica may be behind.
const maxBehind = 1000

// Ready returns why this replica cannot append events now; nil: it can.
func (s *Store) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.anew {
		return journal.ErrAnew
	}
	if s.state.err != nil && s.Now().Sub(s.state.since) > patience {
		return fmt.Errorf("%w (since %s)", s.state.err, s.state.since.UTC().Format(time.RFC3339))
	}
	if s.state.applied+maxBehind < s.state.last {
		return behind(s.state.last - s.state.applied)
	}
	return nil
}

// unavailable returns why a request is refused without an attempt: too few replicas can be reached, and not because of
// an election.
func (s *Store) unavailable() error {
	if err := s.CutOff(); err != nil {
		return fmt.Errorf("%w: %w", journal.ErrUnavailable, err)
	}
	if err := s.Ready(); errors.Is(err, journal.ErrUnavailable) {
		return err
	}
	return nil
}

// Whole returns why the copy may lack events of the stream; nil: a moment ago it had all.
func (s *Store) Whole() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state.anew:
		return journal.ErrAnew
	case s.state.err != nil:
		return s.state.err
	case s.state.applied < s.state.last:
		return behind(s.state.last - s.state.applied)
	}
	return nil
}

func behind(messages uint64) error {
	return fmt.Errorf("the copy of the journal is %d messages behind", messages)
}

// note records why the stream cannot be used, nil: it can, and logs changes.
func (s *Store) note(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, errNothing) {
		return
	}
	err = connected(s.Conn, err)
	s.mu.Lock()
	before := s.state.err
	s.state.anew = s.state.anew || errors.Is(err, journal.ErrAnew)
	if (before == nil) != (err == nil) {
		s.state.since = s.Now()
	}
	s.state.err = err
	s.mu.Unlock()
	switch {
	case before == nil && err != nil:
		s.Log.Warn("read or write the journal failed, retrying", "err", err)
	case before != nil && err == nil:
		s.Log.Info("reading and writing the journal works again")
	}
}

// connected returns why the connection is lost, or that no server answers, if an error means that.
func connected(conn *nats.Conn, err error) error {
	if err == nil {
		return nil
	}
	if conn.IsConnected() {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) ||
			errors.Is(err, jetstream.ErrNoStreamResponse) {
			err = fmt.Errorf("%w: %w", journal.ErrUnavailable, err)
		}
		return err
	}
	return fmt.Errorf("%w: there is no connection to NATS: %w", journal.ErrUnavailable, cmp.Or(conn.LastError(), err))
}

// know records the state that the stream reports.
func (s *Store) know(ctx context.Context, info *jetstream.StreamInfo) {
	first := uint64(0)
	if info.State.Msgs > 0 {
		found, err := s.fetch(ctx, info.State.FirstSeq, 1)
		if err == nil && len(found[0].records) > 0 {
			first = found[0].records[0].Offset
		}
	}
	s.note(ctx, majority(info.Cluster))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.first, s.state.last, s.state.bytes = first, info.State.LastSeq, info.State.Bytes
}

// majority returns why the stream can accept no messages: a leader that is cut off still answers for a while.
func majority(c *jetstream.ClusterInfo) error {
	switch {
	case c == nil:
		return nil // a single server
	case c.Leader == "":
		return fmt.Errorf("%w: the stream has no leader", journal.ErrUnavailable)
	}
	there, away := 1, []string{}
	for _, peer := range c.Replicas {
		if peer.Offline || peer.Active > patience/2 {
			away = append(away, peer.Name)
		} else {
			there++
		}
	}
	if 2*there > there+len(away) {
		return nil
	}
	return fmt.Errorf("%w: of %s nothing is heard", journal.ErrUnavailable, strings.Join(away, " and "))
}

// Expired returns the offset up to which the journal is to be trimmed, 0 for none. The worker applies the limits, the
// others follow the worker's trimming of the stream.
func (s *Store) Expired(l journal.Limits) uint64 {
	s.mu.Lock()
	term, first := s.term, s.state.first
	s.mu.Unlock()
	switch {
	case term != 0:
		return s.copy.Expired(l)
	case first > s.copy.Bounds().Oldest:
		return s.copy.Whole(first - 1)
	}
	return 0
}

// Trim drops whole days whose offsets are all at most upTo: from the stream, if this process is the worker, and from
// the copy.
func (s *Store) Trim(ctx context.Context, upTo uint64) error {
	s.mu.Lock()
	term := s.term
	s.mu.Unlock()
	if term != 0 {
		if err := s.purge(ctx, upTo); err != nil {
			return fmt.Errorf("trim the stream: %w", err)
		}
	}
	return s.copy.Trim(ctx, upTo)
}

// purge drops the messages whose events all have offsets up to upTo.
func (s *Store) purge(ctx context.Context, upTo uint64) error {
	info, err := s.info(ctx)
	if err != nil {
		return err
	}
	var failed error
	first, n := info.State.FirstSeq, int(info.State.LastSeq-info.State.FirstSeq) //nolint:gosec // it fits
	kept := sort.Search(n, func(i int) bool {
		found, err := s.fetch(ctx, first+uint64(i), fetchMessages) //nolint:gosec // it is not negative
		if err != nil {
			failed = err
			return true
		}
		for _, m := range found {
			if len(m.records) > 0 {
				return m.records[len(m.records)-1].Offset > upTo
			}
		}
		return true
	})
	if failed != nil {
		return failed
	}
	return s.stream.Purge(ctx, jetstream.WithPurgeSequence(first+uint64(kept))) //nolint:gosec // it is not negative
}
