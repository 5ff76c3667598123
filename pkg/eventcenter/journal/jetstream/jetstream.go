// Package jetstream is the journal of an event center with several replicas: a NATS JetStream stream, and on each
// replica a copy in SQLite that answers reads.
//
// A replica groups the requests of a few milliseconds into one message. Its copy is then up to date with the stream, so
// it knows the duplicates and the next offset; the stream accepts the message only if no other arrived in between
// (Nats-Expected-Last-Sequence), otherwise the replica reads that one first and plans again. So an offset is used once,
// and is the same on all replicas; and a message with a lost answer can be sent again and is stored once. An event is
// acknowledged when its message is in the stream, on the disks of a majority.
package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
)

// Names in JetStream.
const (
	Stream  = "EVENTCENTER"
	subject = "eventcenter.journal"
	stored  = "eventcenter.stored" // core NATS: the stream has new messages

	awaiting = "eventcenter.awaiting" // core NATS: a replica that waits for a take-over answers

	metaJournal   = "journal"   // key in the stream's metadata: the journal's UUID
	metaMigrating = "migrating" // another key: the stream is being filled
)

// MaxMessage is the message size in bytes that the servers must accept: the largest batch is stored whole.
const MaxMessage = 16 << 20

// Options are those of a journal.
type Options struct {
	Dir      string // of the copy
	Conn     *nats.Conn
	Replicas int // of the stream
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now

	// CutOff returns why no other replica can be reached: requests are refused at once. Nil: unknown.
	CutOff func() error

	// Appended is called with all new records from any replica, in the order of offsets, before Append returns. The
	// worker appends the events that it returns.
	Appended func([]journal.Record) []journal.Event

	Within       time.Duration // for a batch; a quarter for each attempt; 0: 8 s
	Keep         time.Duration // how long a silent stream is remembered; 0: 30 days
	BallastBytes int64         // of the copy; 0: 8 MiB
}

// Store is an open journal.
type Store struct {
	Options
	journal.Reader // the copy
	js             jetstream.JetStream
	stream         jetstream.Stream
	copy           *sqlite.Store
	requests       chan *request
	hints          chan struct{} // the stream has new messages
	hinted         *nats.Subscription

	stop    context.CancelFunc
	stopped sync.WaitGroup
	ended   <-chan struct{} // closed when the goroutine has ended

	at sqlite.Position // only for the writing goroutine

	mu    sync.Mutex // guards the fields below
	state state
	term  uint64 // of this process while it is the worker; otherwise 0
}

// state is the known state of the stream.
type state struct {
	first   uint64 // offset
	last    uint64 // message
	applied uint64 // last message in the copy
	bytes   uint64
	err     error // why it cannot be written or read; nil: it can
	since   time.Time
	anew    bool // the stream has lost the messages directly after the copy's end
}

// Errors of a journal.
var (
	ErrClosed = errors.New("the journal is closed")
	ErrFenced = errors.New("another replica is the worker now")
)

// Open finds or creates the stream, and brings the copy up to date. It waits for a majority of the replicas until ctx
// ends; it calls waiting with the reason. No events are appended before Start.
func Open(ctx context.Context, o Options, waiting func(error)) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.CutOff == nil {
		o.CutOff = func() error { return nil }
	}
	o.Within = cmp.Or(o.Within, appendLimit)
	js, err := jetstream.New(o.Conn, jetstream.WithDefaultTimeout(o.Within/4))
	if err != nil {
		return nil, err
	}
	s := &Store{Options: o, js: js, requests: make(chan *request, maxWaiting), hints: make(chan struct{}, 1)}
	ended := make(chan struct{})
	close(ended)
	s.ended = ended
	if o.Conn.MaxPayload() != 0 && o.Conn.MaxPayload() < MaxMessage {
		return nil, fmt.Errorf("the NATS servers take messages of %d bytes (max_payload): %d are needed",
			o.Conn.MaxPayload(), MaxMessage)
	}
	id, err := s.find(ctx, Config(o.Replicas, string(uuid.NewUUID())), waiting)
	if err != nil {
		return nil, err
	}
	if err = s.openFilled(ctx, id, waiting); errors.Is(err, journal.ErrAnew) {
		s.Log.Warn("rebuild the copy from the stream: it ends before the oldest kept event", "dir", s.Dir)
		if err = os.RemoveAll(s.Dir); err == nil {
			err = s.openFilled(ctx, id, waiting)
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) openFilled(ctx context.Context, id string, waiting func(error)) (err error) {
	if s.copy, err = s.openCopy(ctx, id); err != nil {
		return err
	}
	s.Reader = s.copy
	if s.at, err = s.copy.Position(ctx); err == nil {
		s.state.applied = s.at.Sequence
		err = s.fill(ctx, waiting)
	}
	if err != nil {
		return errors.Join(err, s.copy.Close())
	}
	return nil
}

// retryEvery is the interval between attempts to reach the stream.
const retryEvery = 250 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(retryEvery):
	}
}

// Config is the required configuration of a stream.
func Config(replicas int, id string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: Stream, Description: "the journal of the event center", Subjects: []string{subject},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		Replicas: replicas, AllowDirect: true, DenyDelete: true, Metadata: map[string]string{metaJournal: id}}
}

// find returns the journal's UUID of the stream; if the stream is missing, it creates the given one. It waits while
// another process fills the stream, unless the caller fills it.
func (s *Store) find(ctx context.Context, missing jetstream.StreamConfig, waiting func(error)) (string, error) {
	for {
		stream, err := s.findOrMake(ctx, missing)
		if err == nil {
			found := stream.CachedInfo().Config
			if err = checkConfig(found, s.Replicas); err != nil {
				return "", err
			}
			if found.Metadata[metaMigrating] == "" || missing.Metadata[metaMigrating] != "" {
				s.stream = stream
				return found.Metadata[metaJournal], nil
			}
			err = errors.New("the journal is being filled by \"eventcenter migrate\"")
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("the journal's stream: %w", err)
		}
		waiting(fmt.Errorf("the journal's stream: %w", connected(s.Conn, err)))
		pause(ctx)
	}
}

// findOrMake is one attempt. Without a leader, the servers never answer a request.
func (s *Store) findOrMake(ctx context.Context, missing jetstream.StreamConfig) (jetstream.Stream, error) {
	limited, cancel := context.WithTimeout(ctx, s.Within/4)
	defer cancel()
	stream, err := s.js.Stream(limited, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.js.CreateStream(limited, missing)
	}
	return stream, err
}

func (s *Store) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	limited, cancel := context.WithTimeout(ctx, s.Within/4)
	defer cancel()
	return s.stream.Info(limited)
}

// checkConfig refuses a stream whose configuration breaks the center's guarantees.
func checkConfig(c jetstream.StreamConfig, replicas int) error {
	switch {
	case len(c.Metadata[metaJournal]) != 36:
		return fmt.Errorf("stream %s: it is of something else: no journal's UUID", Stream)
	case c.Replicas != replicas || c.Storage != jetstream.FileStorage:
		return fmt.Errorf("stream %s: it has %d replicas in %s, want %d on disk", Stream, c.Replicas, c.Storage, replicas)
	case c.Discard != jetstream.DiscardNew || c.MaxAge != 0 || c.MaxMsgs > 0 || c.MaxMsgsPerSubject > 0:
		return fmt.Errorf("stream %s: it drops messages by itself", Stream)
	case !c.AllowDirect:
		return fmt.Errorf("stream %s: it must allow direct reads", Stream)
	}
	return nil
}

// openCopy opens the copy. A copy of another journal is set aside, a damaged one is created anew.
func (s *Store) openCopy(ctx context.Context, id string) (*sqlite.Store, error) {
	o := sqlite.Options{Dir: s.Dir, Log: s.Log, Now: s.Now, Keep: s.Keep, Copy: id, BallastBytes: s.BallastBytes}
	c, err := sqlite.Open(ctx, o)
	switch {
	case errors.Is(err, sqlite.ErrOther):
		quarantined := s.Dir + s.Now().UTC().Format(".20060102T150405Z")
		s.Log.Error("set the copy aside: it belongs to another journal", "dir", s.Dir, "to", quarantined, "err", err)
		if err := os.Rename(s.Dir, quarantined); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case c.Damaged():
		s.Log.Error("rebuild the damaged copy from the stream", "dir", s.Dir)
		if err := errors.Join(c.Close(), os.RemoveAll(s.Dir)); err != nil {
			return nil, err
		}
	default:
		return c, nil
	}
	return sqlite.Open(ctx, o)
}

// fill brings the copy up to the present end of the stream.
func (s *Store) fill(ctx context.Context, waiting func(error)) error {
	for {
		info, err := s.info(ctx)
		if err == nil && s.at.Sequence < info.State.LastSeq {
			waiting(behind(info.State.LastSeq - s.at.Sequence))
			_, err = s.catchUp(ctx)
		}
		if err == nil && s.at.Sequence >= info.State.LastSeq {
			s.know(ctx, info)
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, journal.ErrFull) || errors.Is(err, journal.ErrAnew) {
			return cmp.Or(err, ctx.Err())
		}
		if err != nil {
			waiting(connected(s.Conn, err))
		} // otherwise that server lacks it too, for now
		pause(ctx)
	}
}

// Start starts to append and to follow.
func (s *Store) Start() error {
	var err error
	s.hinted, err = s.Conn.Subscribe(stored, func(*nats.Msg) {
		select {
		case s.hints <- struct{}{}:
		default: // one is there already
		}
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background()) // Close ends it
	s.stop, s.ended = stop, ctx.Done()
	s.stopped.Go(func() { s.run(ctx) })
	s.stopped.Go(func() { s.watch(ctx) })
	return nil
}

// Close stops appending and following. Unacknowledged batches may be stored or not.
func (s *Store) Close() error {
	var err error
	if s.stop != nil {
		err = s.hinted.Unsubscribe()
		s.stop()
		s.stopped.Wait()
	}
	if errors.Is(err, nats.ErrConnectionClosed) {
		err = nil
	}
	return errors.Join(err, s.copy.Close())
}
