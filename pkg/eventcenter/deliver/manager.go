package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// The buckets of the control store.
const (
	registered  = "subscriptions" // Registration, adding or removing, by name
	cursors     = "cursors"       // state, by name
	deadLetters = "dead-letters"  // DeadLetter, by NAME.ID
	audits      = "audit"         // Entry, by time
)

const (
	loadLimit = 5 * time.Minute // additions and removals wait for load
	listEvery = time.Minute
)

// Config is the configuration of a manager.
type Config struct {
	Settings Settings
	Journal  journal.Reader
	Store    control.Store
	Log      *slog.Logger
	Version  string
	Resolver *net.Resolver // nil: the system's

	Transport http.RoundTripper // replaces connections, for tests; nil: connections
}

// Registration is a subscription registered through the API.
type Registration struct {
	Subscription
	By Who       `json:"by"`
	At time.Time `json:"at"`
}

// Manager keeps subscriptions, and delivers while Run runs. Only one may run on a store at a time.
type Manager struct {
	Config
	starting chan *subscription // for Run; there is room for all

	changing sync.Mutex // held while subscriptions are added and removed, together with their records

	mu            sync.Mutex // guards the fields below
	subscriptions map[string]*subscription
	ending        map[string]bool // the names that Remove works on
	written       int             // entries of the audit, by this process
}

var (
	// ErrUnknown means that the object does not exist.
	ErrUnknown = errors.New("there is none")
	// ErrRefused means that the request cannot be fulfilled.
	ErrRefused = errors.New("refused")
)

// Open loads the registrations. Call it before anything is appended to the journal, so that it notices a replaced
// journal at its beginning.
func Open(ctx context.Context, c Config) (*Manager, error) {
	c.Settings.setDefaults()
	if err := c.Settings.problem(); err != nil {
		return nil, err
	}
	m := &Manager{Config: c, starting: make(chan *subscription, 2*maxSubscriptions),
		subscriptions: map[string]*subscription{}, ending: map[string]bool{}}
	var configured []*subscription
	for _, one := range c.Settings.Subscriptions {
		s, err := newSubscription(m, one, true)
		if err != nil {
			return nil, err
		}
		configured = append(configured, s)
	}
	if _, err := m.load(ctx, configured); err != nil {
		return nil, fmt.Errorf("subscriptions: %w", err)
	}
	return m, nil
}

// load begins new subscriptions, and those registered ones that are not known yet. It returns the names that
// interrupted changes keep taken.
func (m *Manager) load(ctx context.Context, begin []*subscription) (taken []control.Record, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	m.changing.Lock()
	defer m.changing.Unlock()
	records, err := m.Store.List(ctx, registered, "")
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		m.mu.Lock()
		known, ending := m.subscriptions[record.Key], m.ending[record.Key]
		m.mu.Unlock()
		if text := string(record.Value); text == adding || text == removing {
			switch {
			case ending, known != nil && text == adding && !known.configured:
				continue
			case known != nil && known.configured: // the position and the dead letters are its own now
				record.Value = []byte(adding)
			case known != nil:
				m.Log.Warn("end a subscription: the answer to its removal was lost, or another worker removed it",
					"subscription", record.Key)
				m.halt(known)
			}
			taken = append(taken, record)
			continue
		}
		var r Registration
		if err := json.Unmarshal(record.Value, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", record.Key, err)
		}
		if slices.ContainsFunc(begin, func(s *subscription) bool { return s.Name == r.Name }) {
			m.Log.Error("ignore a registered subscription: the settings have one of the same name", "subscription", r.Name)
			continue
		}
		if known == nil {
			begin = append(begin, m.restored(r))
		}
	}
	if len(begin) == 0 {
		return taken, nil
	}
	positions, err := m.Store.List(ctx, cursors, "")
	if err != nil {
		return nil, err
	}
	letters, err := m.Store.List(ctx, deadLetters, "")
	if err != nil {
		return nil, err
	}
	for _, s := range begin {
		if err := m.begin(s, positions, letters); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// restored returns a registered subscription.
func (m *Manager) restored(r Registration) *subscription {
	s, err := newSubscription(m, r.Subscription, false)
	if err != nil { // for example, its target is no longer permitted
		m.Log.Error("stop a registered subscription that is no longer valid: see the list of subscriptions",
			"subscription", r.Name) // the address may be a secret
		s.problem, s.broken = plain(err.Error()), true
	}
	s.registered = &r
	return s
}

// begin adds a subscription, with its record among the positions and its dead letters, and lets Run start it.
func (m *Manager) begin(s *subscription, positions, letters []control.Record) error {
	for _, l := range letters {
		if name, id, _ := strings.Cut(l.Key, "."); name == s.Name {
			s.letters = append(s.letters, id)
		}
	}
	if !s.broken {
		var position control.Record
		if at := slices.IndexFunc(positions, func(r control.Record) bool { return r.Key == s.Name }); at >= 0 {
			position = positions[at]
		}
		if err := s.load(position); err != nil {
			return err
		}
		m.starting <- s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscriptions[s.Name] = s
	return nil
}

// list begins registered subscriptions that earlier lists lacked, and finishes interrupted changes, until ctx ends. No
// subscription ends because a list lacks it.
func (m *Manager) list(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, listEvery, nil, nil)
		taken, err := m.load(ctx, nil)
		for _, name := range taken {
			err = errors.Join(err, m.finish(ctx, name))
		}
		if err != nil && ctx.Err() == nil {
			m.Log.Error("list the registered subscriptions again failed", "err", err)
		}
	}
}

// Run delivers until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { m.list(ctx) })
	for {
		select {
		case s := <-m.starting:
			all.Go(func() { s.run(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *Manager) find(name string) (*subscription, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.subscriptions[name]
	if s == nil {
		return nil, fmt.Errorf("subscription %.64q: %w", name, ErrUnknown)
	}
	return s, nil
}

// Add registers a subscription.
func (m *Manager) Add(ctx context.Context, who Who, one Subscription) error {
	s, err := newSubscription(m, one, false)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.Lock()
	known, many := m.subscriptions[one.Name] != nil, len(m.subscriptions) >= maxSubscriptions
	m.mu.Unlock()
	after, _ := one.after()
	switch {
	case known:
		return fmt.Errorf("%w: there is a subscription %s", ErrRefused, one.Name)
	case many:
		return fmt.Errorf("%w: there are %d subscriptions, no more are possible", ErrRefused, maxSubscriptions)
	case after > m.Journal.Bounds().Newest:
		return fmt.Errorf("%w: offset %d is not here yet", ErrRefused, after)
	}
	position, err := m.stored(ctx, cursors, one.Name) // of a removed subscription
	if err != nil {
		return err
	}
	name := control.Record{Key: one.Name}
	name.Revision, err = m.Store.Put(ctx, registered, name.Key, []byte(adding), 0)
	if errors.Is(err, control.ErrConflict) {
		if was, failed := m.stored(ctx, registered, one.Name); failed == nil && string(was.Value) == adding { // interrupted
			name.Revision, err = m.Store.Put(ctx, registered, name.Key, was.Value, was.Revision)
		}
	}
	if errors.Is(err, control.ErrConflict) { // the loaded list lacks it, or it is being removed
		return fmt.Errorf("%w: there is a subscription %s, or its removal is not finished", ErrRefused, one.Name)
	}
	if err != nil {
		return err
	}
	s.registered = &Registration{one, who, time.Now().UTC()}
	if err := m.register(ctx, s, position.Revision, name.Revision); err != nil {
		return errors.Join(err, m.discard(ctx, registered, name))
	}
	m.mu.Lock()
	m.subscriptions[one.Name] = s
	m.mu.Unlock()
	m.starting <- s
	return nil
}

// register registers a new subscription whose name is taken by a record of this revision. Its position replaces that of
// a removed one, not one that another worker has written since the name was free.
func (m *Manager) register(ctx context.Context, s *subscription, position, taken uint64) error {
	if err := m.audit(ctx, s.registered.By, "add", s.Name, s.URL); err != nil {
		return err
	}
	value, err := json.Marshal(s.registered)
	if err != nil {
		return err
	}
	if err := s.load(control.Record{}); err != nil {
		return err
	}
	s.revision = position
	if !s.save(ctx, true) { // before the registration: otherwise it would start later after a crash
		return errors.New("where it begins cannot be written down")
	}
	_, err = m.Store.Put(ctx, registered, s.Name, value, taken)
	return err
}

// Pause stops deliveries until Resume. Only events that the journal drops in the meantime are lost.
func (m *Manager) Pause(ctx context.Context, who Who, name string) error {
	return m.change(ctx, who, "pause", name, "", func(s *subscription) { s.pause("by " + plain(who.Name)) })
}

// Resume restarts deliveries; the target is asked again whether it wants events.
func (m *Manager) Resume(ctx context.Context, who Who, name string) error {
	return m.change(ctx, who, "resume", name, "", func(s *subscription) {
		s.state.Paused, s.state.Granted, s.problem = "", time.Time{}, ""
		s.state.Mode, s.state.NoBatches = s.mode(), time.Time{}
		s.closed, s.failures = time.Time{}, 0
		clear(s.fresh)
	})
}

// Replay restarts a subscription after an offset, which may be before or after its present one.
func (m *Manager) Replay(ctx context.Context, who Who, name string, after uint64) error {
	if newest := m.Journal.Bounds().Newest; after > newest {
		return fmt.Errorf("%w: offset %d is not here yet: the newest is %d", ErrRefused, after, newest)
	}
	return m.change(ctx, who, "replay", name, strconv.FormatUint(after, 10), func(s *subscription) {
		after = m.positionAfter(after)
		s.begun++
		s.state.Cursor, s.claimed = after, after
		s.state.Held = slices.DeleteFunc(s.state.Held, func(h *held) bool { return h.Event == nil })
	})
}

func (m *Manager) change(ctx context.Context, who Who, what, name, detail string, do func(*subscription)) error {
	s, err := m.find(name)
	if err != nil {
		return err
	}
	if s.broken {
		return fmt.Errorf("%w: subscription %s is not possible any more: %s", ErrRefused, name, s.problem)
	}
	if err := m.audit(ctx, who, what, name, detail); err != nil {
		return err
	}
	s.mu.Lock()
	do(s)
	s.dirty = true
	s.mu.Unlock()
	signal(s.wake)
	signal(s.retryNow)
	if !s.save(ctx, true) {
		return errors.New("it is so until the center ends: the store cannot be written")
	}
	return nil
}

// pause stops deliveries. mu is held.
func (s *subscription) pause(why string) {
	if s.state.Paused == "" {
		s.m.Log.Warn("pause a subscription", "subscription", s.Name, "why", why)
	}
	s.state.Paused, s.dirty = why, true
	signal(s.wake)
}
