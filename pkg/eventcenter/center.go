// Package eventcenter keeps agents' events and their consequences consistent: the journal, the model derived from it,
// and its checkpoints. It changes no object in a cluster.
package eventcenter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/sqlite"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
)

const (
	journalDir     = "journal"
	checkpointFile = "model.json" // of the model, written periodically
	baseFile       = "base.json"  // of the model at the beginning of a trimmed journal
	reportsDir     = "reports"    // one file per day

	// ControlFile is the control store of a single center, in its directory.
	ControlFile = "control.db"

	replayPage = 1000 // records

	checkpointEvery  = 5 * time.Minute
	checkpointEvents = 20_000 // a restart applies at most about this many

	upkeepEvery = 10 * time.Second
	// checkRests is the ratio of rest to work in the check of all files: at its start the center also receives the
	// events that agents kept while it was away.
	checkRests = 9
)

// Options are the options of a center.
type Options struct {
	Dir  string
	Log  *slog.Logger
	Keep journal.Limits

	Location *time.Location   // of the days of reports; nil: UTC
	Now      func() time.Time // nil: time.Now

	// Replicated opens the journal of several replicas, with a copy in a directory. Nil: SQLite, and a single center.
	Replicated func(ctx context.Context, dir string, appended func([]journal.Record) []journal.Event) (Replicated, error)
}

// Journal is the part of the journal that a center needs.
type Journal interface {
	journal.Journal
	Health() journal.Health
	Check(ctx context.Context, rest func(worked time.Duration)) ([]journal.Gap, error)
	Expired(l journal.Limits) uint64
	Trim(ctx context.Context, upTo uint64) error
	Seal(ctx context.Context) error
	Close() error
}

// Replicated is a journal that several replicas append to; one of them at a time is the worker, which appends derived
// events and trims.
type Replicated interface {
	Journal
	Start() error // until then, no events are appended, even by others
	Ready() error // why this replica cannot append events now
	Whole() error // why it may lack events
	Take(ctx context.Context, term uint64) error
	Leave()
	AppendAs(ctx context.Context, term uint64, events []journal.Event) (journal.Appended, error)
}

// Center is an open event center.
type Center struct {
	Options
	Journal Journal
	Model   *model.Model
	Reports *report.Keeper

	loaded     bool   // records are applied to the model when they are appended
	checkpoint uint64 // offset of the latest
}

// Open opens the journal and applies all of it to the model.
func Open(ctx context.Context, o Options) (*Center, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Center{Options: o}
	var err error
	dir := filepath.Join(o.Dir, journalDir)
	if o.Replicated != nil {
		c.Journal, err = o.Replicated(ctx, dir, c.appended)
	} else {
		c.Journal, err = sqlite.Open(ctx, sqlite.Options{Dir: dir, Log: o.Log, Now: o.Now, Appended: c.appended,
			Keep: o.Keep.Age})
	}
	if err != nil {
		return nil, err
	}
	if err = c.load(ctx); err != nil {
		return nil, errors.Join(err, c.Journal.Close())
	}
	return c, nil
}

// appended is called by the journal's writer.
func (c *Center) appended(records []journal.Record) []journal.Event {
	if !c.loaded {
		return nil
	}
	return c.Model.Apply(records)
}

func (c *Center) load(ctx context.Context) error {
	if err := c.begin(c.start(checkpointFile, baseFile)); err != nil {
		return err
	}
	if stored := c.Reports.Stored(); c.Model.Before() > stored { // the day before the present one is lost
		base := c.start(baseFile)
		if base.Before() <= stored && base.Offset()+1 >= c.Journal.Bounds().Oldest {
			c.Log.Info("the last day of the reports is lost: the start takes longer, since it counts the journal again",
				"after", base.Offset(), "newest", c.Journal.Bounds().Newest)
			if err := c.begin(base); err != nil {
				return err
			}
		}
	}
	c.checkpoint = c.Model.Offset()
	err := replay(ctx, c.Journal, c.Model, c.Journal.Bounds().Newest, func(records []journal.Record) {
		c.Model.Apply(records)
		c.logged("reports", c.Reports.Store())
	})
	if err != nil {
		return err
	}
	c.loaded = true // no one appends yet
	// Otherwise the first event might end many days at once.
	c.logged("reports", c.Reports.Follow())
	if replicated, ok := c.Journal.(Replicated); ok {
		return replicated.Start()
	}
	if pending := c.Model.Apply(nil); len(pending) > 0 {
		if _, err := c.Journal.Append(ctx, pending); err != nil {
			c.Log.Error("append derived events failed, retrying with the next event", "err", err)
		}
	}
	return nil
}

// begin makes m the model, and opens the reports of its days.
func (c *Center) begin(m *model.Model) (err error) {
	c.Model = m
	o := report.Options{Dir: filepath.Join(c.Dir, reportsDir), Journal: c.Journal, Model: m, Log: c.Log,
		Now: c.Now}
	if replicated, ok := c.Journal.(Replicated); ok {
		o.Ready = replicated.Whole
	}
	c.Reports, err = report.Open(o)
	return err
}

// start returns the model of the first usable checkpoint, or else an empty one.
func (c *Center) start(names ...string) (m *model.Model) {
	defer func() { m.Location = cmp.Or(c.Location, time.UTC) }()
	bounds := c.Journal.Bounds()
	for _, name := range names {
		m, err := loadModel(filepath.Join(c.Dir, name), bounds.Journal)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			c.Log.Error("read a checkpoint failed: rebuilding the model from the journal", "err", err)
		case m.Offset() > bounds.Newest || m.Offset()+1 < bounds.Oldest:
			c.Log.Error("discard a checkpoint of another journal: rebuilding the model from this one",
				"file", name, "checkpoint", m.Offset(), "oldest", bounds.Oldest, "newest", bounds.Newest)
		default:
			return m
		}
	}
	if bounds.Oldest > 1 {
		c.Log.Warn("no checkpoint of events older than the journal: nodes are complete from their next snapshot on",
			"oldest", bounds.Oldest)
	}
	return model.New()
}

func loadModel(name, journalID string) (*model.Model, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := model.Load(f, journalID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// replay reads the journal from the model's offset up to another, with apply.
func replay(ctx context.Context, s Journal, m *model.Model, upTo uint64, apply func([]journal.Record)) error {
	after := max(m.Offset(), s.Bounds().Oldest-1)
	m.Lose(after - m.Offset())
	for after < upTo {
		page, err := s.Read(ctx, journal.Query{After: after, Limit: int(min(replayPage, upTo-after))})
		if err != nil {
			return fmt.Errorf("read the journal after %d: %w", after, err)
		}
		apply(page.Records)
		for _, g := range page.Gaps {
			m.Lose(g.To - g.From + 1)
		}
		after = page.Next
	}
	return nil
}

// save writes a checkpoint. It calls stored before the checkpoint replaces the last one.
func save(name, journalID string, m *model.Model, stored func() error) (offset uint64, err error) {
	err = atomicfile.Write(name, func(w io.Writer) (err error) {
		if offset, err = m.Save(w, journalID); err != nil {
			return err
		}
		return stored()
	})
	return offset, err
}

// Checkpoint saves the model, after the days that it no longer has.
func (c *Center) Checkpoint() error {
	offset, err := save(filepath.Join(c.Dir, checkpointFile), c.Journal.Bounds().Journal, c.Model, c.Reports.Store)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	c.checkpoint = offset
	return nil
}

// trim drops events beyond the limits. Before that, it applies them to the base, so that base and journal always yield
// the model.
func (c *Center) trim(ctx context.Context) error {
	upTo := c.Journal.Expired(c.Keep)
	if upTo == 0 {
		return nil
	}
	base := c.start(baseFile)
	if err := replay(ctx, c.Journal, base, upTo, func(records []journal.Record) { base.Apply(records) }); err != nil {
		return err
	}
	if _, err := save(filepath.Join(c.Dir, baseFile), c.Journal.Bounds().Journal, base, c.Reports.Store); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	c.Log.Info("trim the journal", "up to", upTo)
	return c.Journal.Trim(ctx, upTo)
}

// Run maintains checkpoints and the journal's limits until ctx ends, or the center must be opened again. It also checks
// all files of the journal once.
func (c *Center) Run(ctx context.Context) error {
	var checking sync.WaitGroup
	defer checking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	checking.Go(func() {
		_, err := c.Journal.Check(ctx, func(worked time.Duration) {
			select {
			case <-ctx.Done():
			case <-time.After(checkRests * worked):
			}
		})
		if err != nil && ctx.Err() == nil {
			c.Log.Error("check the journal failed", "err", err)
		}
	})
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	clock := newClock(c.Now)
	for saved := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if by := clock.jump(); by != 0 {
			c.Log.Warn("the clock of this machine jumped: times of receipt before and after it differ", "by", by)
		}
		if replicated, ok := c.Journal.(Replicated); ok && errors.Is(replicated.Ready(), journal.ErrAnew) {
			return journal.ErrAnew
		}
		if c.Model.Offset()-c.checkpoint >= checkpointEvents || time.Since(saved) >= checkpointEvery {
			c.logged("checkpoint", c.Checkpoint())
			saved = time.Now()
		}
		c.logged("reports", c.Reports.Follow())
		c.logged("trim", c.trim(ctx))
		c.logged("seal", c.Journal.Seal(ctx))
	}
}

// Work makes this replica the worker, and completes work of the previous one. term is larger than any earlier worker's.
func (c *Center) Work(ctx context.Context, term uint64) error {
	replicated, ok := c.Journal.(Replicated)
	if !ok {
		return nil // a single center
	}
	if err := replicated.Take(ctx, term); err != nil {
		return err
	}
	pending := c.Model.Apply(nil)
	if len(pending) == 0 {
		return nil
	}
	_, err := replicated.AppendAs(ctx, term, pending)
	return err
}

func (c *Center) logged(action string, err error) {
	if err != nil {
		c.Log.Error("upkeep of the journal failed, retrying", "action", action, "err", err)
	}
}

// Close saves the model and closes the journal.
func (c *Center) Close() error {
	return errors.Join(c.Checkpoint(), c.Journal.Close())
}

// Verification is the result of Verify.
type Verification struct {
	Journal     string             `json:"journal"`
	Oldest      uint64             `json:"oldest,string"`
	Newest      uint64             `json:"newest,string"`
	Gaps        []journal.Gap      `json:"gaps"`
	Checkpoint  uint64             `json:"checkpoint,string"` // the model was compared up to here
	Differences []model.Difference `json:"differences"`
}

// Fine reports whether the whole journal is readable and yields the model.
func (v Verification) Fine() bool { return len(v.Gaps) == 0 && len(v.Differences) == 0 }

// Verify reads the whole journal in a directory, even while a center runs on it, and compares its latest checkpoint
// with the model that the journal yields. It changes no files.
func Verify(ctx context.Context, dir string) (v Verification, err error) {
	log := slog.New(slog.DiscardHandler) // the result contains its findings
	s, err := sqlite.Open(ctx, sqlite.Options{Dir: filepath.Join(dir, journalDir), Log: log, ReadOnly: true})
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	bounds := s.Bounds()
	v = Verification{Journal: bounds.Journal, Oldest: bounds.Oldest, Newest: bounds.Newest}
	if v.Gaps, err = s.Check(ctx, sqlite.WithoutRest); err != nil {
		return v, err
	}
	checkpoint, err := loadModel(filepath.Join(dir, checkpointFile), bounds.Journal)
	if errors.Is(err, os.ErrNotExist) {
		return v, nil // there is none yet, and so no wrong one
	}
	if err != nil {
		return v, err
	}
	c := Center{Options: Options{Dir: dir, Log: log, Location: checkpoint.Location}, Journal: s}
	rebuilt := c.start(baseFile)
	err = replay(ctx, s, rebuilt, bounds.Newest, func(records []journal.Record) {
		rebuilt.Apply(checkpoint.Limit(records))
	})
	v.Checkpoint, v.Differences = checkpoint.Offset(), model.Compare(checkpoint, rebuilt)
	return v, err
}
