// Package jetstream is the journal of an event center of several replicas: a stream of NATS JetStream, of which each
// replica keeps a copy in SQLite that answers what is asked.
//
// A replica groups the requests of a few milliseconds into one message. Before, it has all of the stream in its copy, and
// so knows what is a duplicate and which offset comes next; the stream takes the message only if no other came meanwhile
// (Nats-Expected-Last-Sequence), else the replica reads that one first and plans again. So an offset is given once, and
// is the same for everyone; and a message whose answer was lost can be sent again and is stored once. An event is
// acknowledged when its message is in the stream, on the disks of a majority, and is found there.
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
	stored  = "eventcenter.stored" // core NATS: something new is in the stream

	awaiting = "eventcenter.awaiting" // core NATS: a replica that waits for a take-over answers

	metaJournal   = "journal"   // key of the stream's metadata: the journal's UUID
	metaMigrating = "migrating" // another: it is being filled
)

// MaxMessage is what the servers must be able to take as one message, in bytes: the largest batch is stored whole.
const MaxMessage = 16 << 20

// Options are those of a journal.
type Options struct {
	Dir      string // of the copy
	Conn     *nats.Conn
	Replicas int // of the stream
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now

	// Appended is called with all that was appended by any replica, in the order of offsets, before Append returns. What
	// it returns is appended in the worker's name.
	Appended func([]journal.Record) []journal.Event

	Within       time.Duration // for a batch; a quarter is for one attempt; 0: 8 s
	Keep         time.Duration // how long a stream that sends nothing is remembered; 0: 30 days
	BallastBytes int64         // of the copy; 0: 8 MiB
}

// Store is an open journal.
type Store struct {
	Options
	js       jetstream.JetStream
	stream   jetstream.Stream
	copy     *sqlite.Store
	requests chan *request
	hints    chan struct{} // something new is in the stream
	hinted   *nats.Subscription

	stop    context.CancelFunc
	stopped sync.WaitGroup
	ended   <-chan struct{} // closed when it stops

	at sqlite.Position // of the goroutine that writes

	mu    sync.Mutex // guards what follows
	state state
	term  uint64 // of this process, while it is the worker; else 0
}

// state is what is known of the stream.
type state struct {
	first   uint64 // offset
	last    uint64 // message
	applied uint64 // message that the copy has
	bytes   uint64
	err     error // why it cannot be written or read; nil: it can
	since   time.Time
	anew    bool // the stream no longer has what comes after the copy
}

// Errors of a journal.
var (
	ErrClosed = errors.New("the journal is closed")
	ErrFenced = errors.New("another replica is the worker now")
)

// Open finds the stream, or makes it, and brings the copy to where the stream is. It waits for a majority of the
// replicas until ctx ends; waiting is told why. Nothing is appended before Start.
func Open(ctx context.Context, o Options, waiting func(error)) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
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
	id, err := s.find(ctx, waiting)
	if err != nil {
		return nil, err
	}
	if err = s.openFilled(ctx, id, waiting); errors.Is(err, journal.ErrAnew) {
		s.Log.Warn("the copy ends before what is kept begins, and is made anew from the stream", "dir", s.Dir)
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
	if s.at, err = s.copy.Position(ctx); err == nil {
		err = s.fill(ctx, waiting)
	}
	if err != nil {
		return errors.Join(err, s.copy.Close())
	}
	return nil
}

// retryEvery is how often a stream that cannot be reached is tried again.
const retryEvery = 250 * time.Millisecond

// Config is what a stream must be.
func Config(replicas int, id string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: Stream, Description: "the journal of the event center", Subjects: []string{subject},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		Replicas: replicas, AllowDirect: true, DenyDelete: true, Metadata: map[string]string{metaJournal: id}}
}

// find returns the stream's UUID; where there is no stream it is made.
func (s *Store) find(ctx context.Context, waiting func(error)) (string, error) {
	for {
		stream, err := s.findOrMake(ctx)
		if err == nil {
			meta := stream.CachedInfo().Config.Metadata
			if err = checkConfig(stream.CachedInfo().Config, s.Replicas); err != nil {
				return "", err
			}
			if meta[metaMigrating] == "" {
				s.stream = stream
				return meta[metaJournal], nil
			}
			err = errors.New("the journal is being filled by \"eventcenter migrate\"")
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("the journal's stream: %w", err)
		}
		waiting(fmt.Errorf("the journal's stream: %w", connected(s.Conn, err)))
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// findOrMake is one attempt. A request that no leader has heard is never answered.
func (s *Store) findOrMake(ctx context.Context) (jetstream.Stream, error) {
	limited, cancel := context.WithTimeout(ctx, s.Within/4)
	defer cancel()
	stream, err := s.js.Stream(limited, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.js.CreateStream(limited, Config(s.Replicas, string(uuid.NewUUID())))
	}
	return stream, err
}

func (s *Store) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	limited, cancel := context.WithTimeout(ctx, s.Within/4)
	defer cancel()
	return s.stream.Info(limited)
}

// checkConfig refuses a stream that does not keep what the center promises.
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

// openCopy opens the copy. One of another journal is set aside, one that is damaged is made anew.
func (s *Store) openCopy(ctx context.Context, id string) (*sqlite.Store, error) {
	o := sqlite.Options{Dir: s.Dir, Log: s.Log, Now: s.Now, Keep: s.Keep, Copy: id, BallastBytes: s.BallastBytes}
	c, err := sqlite.Open(ctx, o)
	switch {
	case errors.Is(err, sqlite.ErrOther):
		aside := s.Dir + s.Now().UTC().Format(".20060102T150405Z")
		s.Log.Error("the copy is of another journal, and is set aside", "dir", s.Dir, "to", aside, "err", err)
		if err := os.Rename(s.Dir, aside); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case c.Damaged():
		s.Log.Error("the copy is damaged, and is made anew from the stream", "dir", s.Dir)
		if err := errors.Join(c.Close(), os.RemoveAll(s.Dir)); err != nil {
			return nil, err
		}
	default:
		return c, nil
	}
	return sqlite.Open(ctx, o)
}

// fill brings the copy to where the stream is now.
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
		} // else the server that was asked lacks it too, yet
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// Start begins to append and to follow.
func (s *Store) Start() error {
	var err error
	s.hinted, err = s.Conn.Subscribe(stored, func(*nats.Msg) {
		select {
		case s.hints <- struct{}{}:
		default: // there is one
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

// Close ends appending and following. What Append was given and has not answered may be stored or not.
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
