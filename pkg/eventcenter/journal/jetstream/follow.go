package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	fetchMessages = 500
	fetchBytes    = 8 << 20 // of the messages in one answer; a single larger one is possible

	headerSequence = "Nats-Sequence"
)

// errNothing means that the replica has no messages in the requested range.
var errNothing = errors.New("nothing is there yet")

// catchUp reads messages that the copy lacks. It ends when a replica of the stream reports no more; that replica may be
// behind.
func (s *Store) catchUp(ctx context.Context) (derived []journal.Event, err error) {
	for {
		messages, err := s.fetch(ctx, s.at.Sequence+1, fetchMessages)
		if errors.Is(err, errNothing) {
			return derived, nil
		}
		if err != nil {
			return derived, err
		}
		more, err := s.apply(ctx, messages)
		derived = append(derived, more...)
		if err != nil {
			return derived, err
		}
	}
}

// fetch reads messages from a sequence on: one request, many answers. The nearest replica of the stream answers, even
// without a majority: its messages are durable.
func (s *Store) fetch(ctx context.Context, from uint64, most int) (found []message, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Within/4)
	defer cancel()
	ask, err := json.Marshal(map[string]any{"seq": from, "batch": most, "max_bytes": fetchBytes})
	if err != nil {
		return nil, err
	}
	inbox := s.Conn.NewRespInbox()
	answers, err := s.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer answers.Unsubscribe() // if the connection is closed, the subscription ends anyway
	if err := s.Conn.PublishRequest("$JS.API.DIRECT.GET."+Stream, inbox, ask); err != nil {
		return nil, err
	}
	for {
		m, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return found, incomplete(found, err)
		}
		status := m.Header.Get("Status")
		switch {
		case status == "404":
			return nil, errNothing
		case status == "204": // the end
			return found, incomplete(found, errNothing)
		case status != "":
			return found, incomplete(found, fmt.Errorf("%s %s", status, m.Header.Get("Description")))
		}
		one, err := received(m)
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
}

// incomplete returns the error for an answer that ends early: nil if it has messages.
func incomplete(found []message, err error) error {
	if len(found) > 0 {
		return nil
	}
	return fmt.Errorf("read the stream: %w", err)
}

func received(m *nats.Msg) (one message, err error) {
	if one.sequence, err = strconv.ParseUint(m.Header.Get(headerSequence), 10, 64); err != nil {
		return one, fmt.Errorf("read the stream: %s: %w", headerSequence, err)
	}
	if one.records, one.term, err = decode(m.Data); err != nil {
		return one, fmt.Errorf("message %d of the stream: %w", one.sequence, err)
	}
	return one, nil
}

// watch polls the state of the stream until ctx ends.
func (s *Store) watch(ctx context.Context) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		info, err := s.info(ctx)
		if err == nil {
			s.know(ctx, info)
		} else if ctx.Err() == nil {
			s.note(ctx, fmt.Errorf("the journal's stream: %w", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
