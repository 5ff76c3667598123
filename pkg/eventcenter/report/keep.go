package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	suffix   = ".json.gz"
	keepDays = 400     // 13 months
	page     = 1000    // records
	maxDay   = 2 << 30 // bytes of a day's file, unpacked

	catchUp = 2 * time.Second // how long a report waits for pending events of the journal

	// behind is how far counted time lags the clock: the journal stores events slightly after their receipt.
	behind = 10 * time.Second
)

// Options are the options of a keeper.
type Options struct {
	Dir      string
	Journal  journal.Reader
	Log      *slog.Logger
	Location *time.Location             // nil: UTC
	Now      func() time.Time           // nil: time.Now
	Places   func() map[model.Key]Place // of the present nodes; nil: unknown
	Base     func() *model.Model        // the state at the beginning of the journal; nil: an empty one
}

// Keeper counts the journal on demand, with a model of its own, and stores a file for each finished day. The counts of the
// unfinished day are only in memory: they are computed again after a start.
type Keeper struct {
	Options

	mu    sync.Mutex // guards the fields below
	model *model.Model
	day   *Day   // nil before the first event
	read  uint64 // up to this offset
}

// Open continues after the newest stored day.
func Open(o Options) (*Keeper, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Location == nil {
		o.Location = time.UTC
	}
	k := &Keeper{Options: o}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	names, err := k.names()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Backward(names) {
		var m *model.Model
		d, err := load(k.file(name), &m)
		if errors.Is(err, io.EOF) { // of an older version, without the state: so are those before it
			break
		}
		if bounds := o.Journal.Bounds(); err == nil && (d.Journal != bounds.Journal || d.Offset > bounds.Newest) {
			err = fmt.Errorf("it is of journal %s up to %d, this is %s up to %d", d.Journal, d.Offset, bounds.Journal,
				bounds.Newest)
		}
		if err != nil {
			o.Log.Error("discard a stored day of the reports: counting it again from the journal", "day", name,
				"err", err)
			continue
		}
		k.model, k.read, k.day = m, d.Offset, newDay(d.To, o.Location, d.Journal, d.Offset, m, d)
		break
	}
	if k.model == nil && o.Base != nil {
		k.model = o.Base()
		k.read = k.model.Offset()
	}
	if k.model == nil {
		k.model = model.New()
	}
	k.model.Count = func(n *model.Node, c model.Change) { k.day.count(n, c) }
	return k, nil
}

// closed stores a finished day, and removes days that are too old.
func (k *Keeper) closed(d *Day) error {
	k.place(d)
	if was, err := load(k.file(d.Name), nil); err == nil && was.Complete && was.Journal == d.Journal {
		return nil // by an older version, whose files have no state: it is counted again for the days after it
	}
	if err := save(k.file(d.Name), d, k.model); err != nil {
		return fmt.Errorf("report of %s: %w", d.Name, err)
	}
	oldest := d.To.AddDate(0, 0, -keepDays).Format(time.DateOnly)
	names, err := k.names()
	for _, name := range names {
		if name < oldest {
			err = errors.Join(err, os.Remove(k.file(name)))
		}
	}
	return err
}

// place records where nodes are now. Removed nodes keep their place.
func (k *Keeper) place(d *Day) {
	if k.Places == nil {
		return
	}
	places := k.Places()
	for _, n := range d.Nodes {
		if p, ok := places[model.Key{Cluster: n.Cluster, Node: n.Name}]; ok && p != (Place{}) {
			n.Place = p
		}
	}
}

// Follow counts the whole journal, then the time since.
func (k *Keeper) Follow(ctx context.Context) error {
	for {
		more, err := k.step(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// step counts one page of the journal. If there is none, it counts the time.
func (k *Keeper) step(ctx context.Context) (more bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	bounds, after := k.Journal.Bounds(), k.read
	if after >= bounds.Newest {
		return false, k.advance(k.Now().Add(-behind))
	}
	lost := uint64(0)
	if after+1 < bounds.Oldest {
		lost, after = bounds.Oldest-1-after, bounds.Oldest-1
	}
	got, err := k.Journal.Read(ctx, journal.Query{After: after, Limit: int(min(page, bounds.Newest-after))})
	if err != nil {
		return false, err
	}
	for _, r := range got.Records {
		if k.day == nil {
			k.day = newDay(r.Received, k.Location, bounds.Journal, r.Offset-1, k.model, nil)
		}
		if err := k.advance(r.Received); err != nil {
			return false, err
		}
		k.model.Apply([]journal.Record{r})
		k.day.Offset, k.read = r.Offset, r.Offset
	}
	k.read = got.Next
	for _, g := range got.Gaps {
		lost += g.To - g.From + 1
	}
	if d := k.day; d != nil {
		d.Offset = max(d.Offset, got.Next)
		if after > d.Before { // events lost before the first day do not count
			d.Lost += lost
		}
	}
	return got.Next > after, nil
}

// advance counts time up to a moment, and closes the days finished by then.
func (k *Keeper) advance(now time.Time) error {
	for k.day != nil && !now.Before(k.day.To) {
		d := k.day
		d.end(k.model, d.To)
		d.Through, d.Complete = d.To, true
		if err := k.closed(d); err != nil {
			return err
		}
		k.day = newDay(d.To, k.Location, d.Journal, d.Offset, k.model, d)
	}
	if k.day != nil {
		k.day.Through = event.Later(k.day.Through, now)
	}
	return nil
}

// Offset returns the offset up to which the journal is counted.
func (k *Keeper) Offset() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.read
}

// Report returns the report of the day or week that contains date, as 2026-11-23, today or yesterday; empty: today. A
// *web.Refusal says that the date is invalid, or has no report.
func (k *Keeper) Report(ctx context.Context, p Period, date string) (Report, error) {
	if p != Daily && p != Weekly {
		return Report{}, &web.Refusal{Status: http.StatusNotFound, Reason: "there is no such report: want daily or weekly"}
	}
	now := k.Now().In(k.Location)
	y, m, d := now.Date()
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch date {
	case "", "today":
	case "yesterday":
		day = day.AddDate(0, 0, -1)
	default:
		var err error
		if day, err = time.Parse(time.DateOnly, date); err != nil {
			return Report{}, &web.Refusal{Status: http.StatusBadRequest,
				Reason: fmt.Sprintf("date %.40q: want a day as 2026-11-23, today or yesterday", date)}
		}
	}
	limited, cancel := context.WithTimeout(ctx, catchUp)
	err := k.Follow(limited)
	cancel()
	if err != nil && limited.Err() == nil {
		return Report{}, err
	}
	name, count := day.Format(time.DateOnly), 1
	if p == Weekly {
		for day.Weekday() != time.Monday {
			day = day.AddDate(0, 0, -1)
		}
		y, w := day.ISOWeek()
		name, count = fmt.Sprintf("%04d-W%02d", y, w), 7
	}
	return k.build(p, name, day, count)
}

func (k *Keeper) build(p Period, name string, first time.Time, count int) (Report, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Now()
	var s sum
	var missing []string
	for i := range count {
		date := first.AddDate(0, 0, count-1-i).Format(time.DateOnly)
		switch d, err := k.stored(date); {
		case err == nil:
			through := d.Through
			if now.After(through) && k.read >= k.Journal.Bounds().Newest {
				through = now
			}
			if d == k.day {
				if through.After(d.To) { // it will be finished soon
					through = d.To
				}
				d.end(k.model, through)
			}
			s.add(d, through.UTC())
		case !errors.Is(err, os.ErrNotExist):
			k.Log.Error("read a day of the reports failed", "day", date, "err", err)
			missing = append(missing, date)
		case date <= now.In(k.Location).Format(time.DateOnly):
			missing = append(missing, date)
		}
	}
	slices.Reverse(missing)
	if s.days == 0 {
		names, err := k.names()
		if k.day != nil {
			names = append(names, k.day.Name)
		}
		reason := "there is no report: nothing was received yet"
		if len(names) > 0 {
			reason = fmt.Sprintf("there is no report of %s: there are of %s to %s", name, names[0], slices.Max(names))
		}
		return Report{}, cmp.Or[error](err, &web.Refusal{Status: http.StatusNotFound, Reason: reason})
	}
	var before []head
	for i := range count {
		if h, err := readHead(k.file(first.AddDate(0, 0, i-count).Format(time.DateOnly))); err == nil {
			before = append(before, h)
		}
	}
	r := s.report(p, name, before)
	r.Missing, r.Partial = missing, r.Partial || len(missing) > 0 || p == Weekly && s.days < count
	return r, nil
}

// stored returns a day: the present one, or a stored one.
func (k *Keeper) stored(name string) (*Day, error) {
	if k.day != nil && k.day.Name == name {
		k.place(k.day)
		return k.day, nil
	}
	return load(k.file(name), nil)
}
