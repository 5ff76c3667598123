package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Taken is the result of a take-over: the same for both journals.
type Taken struct {
	Journal string `json:"journal"`
	Events  int    `json:"events"`
	Newest  uint64 `json:"newest,string"`
	SHA256  string `json:"sha256"` // of offsets, times of receipt, attributes and CloudEvents, in order
}

const takePage = 250 // events in a message

// TakeOver fills the stream with a journal: UUID, offsets and times of receipt stay, so that cursors stay valid. Events
// stored by an earlier attempt are not sent again. Centers get the stream only after it was read back and has the same
// count and hash.
func TakeOver(ctx context.Context, conn *nats.Conn, replicas int, from journal.Reader, log *slog.Logger) (t Taken, err error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return t, err
	}
	s := &Store{Options: Options{Conn: conn, Replicas: replicas, Log: log, Within: appendLimit}, js: js}
	bounds := from.Bounds()
	filling := Config(replicas, bounds.Journal)
	filling.Metadata[metaMigrating] = "true"
	id, err := s.find(ctx, filling, func(err error) { log.Info("waiting", "for", err) })
	if err == nil && id != bounds.Journal {
		err = fmt.Errorf("stream %s is of another journal: %s", Stream, id)
	}
	if err != nil {
		return t, err
	}
	want, got := newSum(), newSum()
	if err := s.send(ctx, from, want); err != nil {
		return t, err
	}
	for next := uint64(1); ; {
		messages, err := s.fetch(ctx, next, fetchMessages)
		if errors.Is(err, errNothing) {
			break
		}
		if err != nil {
			return t, err
		}
		for _, m := range messages {
			got.add(m.records)
			next = m.sequence + 1
		}
	}
	t = Taken{bounds.Journal, want.events, bounds.Newest, want.text()}
	if want.events != got.events || want.text() != got.text() {
		return t, fmt.Errorf("the stream has %d events with hash %s, the journal %d with %s", got.events, got.text(),
			want.events, want.text())
	}
	_, err = js.UpdateStream(ctx, Config(replicas, bounds.Journal))
	return t, err
}

// send sends the events that the stream lacks, and adds all to a sum.
func (s *Store) send(ctx context.Context, from journal.Reader, all *sum) error {
	info, err := s.info(ctx)
	if err != nil {
		return err
	}
	bounds, end, last := from.Bounds(), uint64(0), info.State.LastSeq
	if last > 0 {
		messages, err := s.fetch(ctx, last, 1)
		if err != nil {
			return err
		}
		if n := len(messages[0].records); n > 0 {
			end = messages[0].records[n-1].Offset
		}
	}
	if end < bounds.Newest && s.stream.CachedInfo().Config.Metadata[metaMigrating] == "" {
		return errors.New("the stream was filled before, and has less than the journal: they have gone apart")
	}
	for after := bounds.Oldest - 1; after < bounds.Newest; {
		page, err := from.Read(ctx, journal.Query{After: after, Limit: takePage})
		if err != nil {
			return err
		}
		for _, g := range page.Gaps {
			s.Log.Warn("copy a gap of the journal to the stream", "from", g.From, "to", g.To, "reason", g.Reason)
		}
		after = page.Next
		all.add(page.Records)
		lacking := slices.DeleteFunc(page.Records, func(r journal.Record) bool { return r.Offset <= end })
		if len(lacking) == 0 {
			continue
		}
		data, err := encode(lacking, 0, 0)
		if err != nil {
			return err
		}
		ack, err := s.js.Publish(ctx, subject, data, jetstream.WithExpectLastSequence(last))
		if err != nil {
			return fmt.Errorf("after offset %d: %w; what is there stays: run it again", lacking[0].Offset-1, err)
		}
		last = ack.Sequence
	}
	return nil
}

// AwaitTakeOver returns when another replica has filled the stream. Until then it answers AwaitOthers.
func AwaitTakeOver(ctx context.Context, conn *nats.Conn, log *slog.Logger) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	asked, err := conn.Subscribe(awaiting, func(m *nats.Msg) { _ = m.Respond(nil) }) // it asks again
	if err != nil {
		return err
	}
	defer asked.Unsubscribe() // fails only if the connection is lost, and the subscription with it
	for begun := true; ; begun = false {
		limited, cancel := context.WithTimeout(ctx, publishLimit)
		stream, err := js.Stream(limited, Stream)
		cancel()
		if err == nil && stream.CachedInfo().Config.Metadata[metaMigrating] == "" {
			return nil
		}
		if begun {
			log.Info("no journal here: taking part until another replica has filled the stream")
		}
		if pause(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// AwaitOthers returns when no other replica is in AwaitTakeOver any more, or ctx ends. Missing servers are no proof:
// each may already belong to a center, before the last replica has noticed.
func AwaitOthers(ctx context.Context, conn *nats.Conn) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, publishLimit)
		_, err := conn.RequestWithContext(limited, awaiting, nil)
		cancel()
		if errors.Is(err, nats.ErrNoResponders) {
			return
		}
		pause(ctx)
	}
}

// sum is a hash over records.
type sum struct {
	events int
	hash   hash.Hash
}

func newSum() *sum { return &sum{hash: sha256.New()} }

func (s *sum) add(records []journal.Record) {
	s.events += len(records)
	for _, r := range records {
		_ = json.NewEncoder(s.hash).Encode(r) // plain data: it can always be encoded, and a hash takes everything
	}
}

func (s *sum) text() string { return hex.EncodeToString(s.hash.Sum(nil)) }
